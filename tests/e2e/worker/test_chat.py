"""Chatting with a real worker over its real socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker.serving import ENDLESS, Worker, chat_body, content, serving
from tests.fixtures.tiny import Tiny


async def collect(worker: Worker, text: str = "Hello", **fields: Any) -> list[Any]:
    async with worker.stream(text, **fields) as stream:
        return [event async for event in stream]


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}


async def test_a_whole_answer_has_openais_shape() -> None:
    async with serving() as worker:
        body = await worker.answer(model="whatever-the-client-said")
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": choice["message"]["content"],
        "refusal": None,
        "annotations": [],
    }
    assert len(choice["message"]["content"]) == 16
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    usage = body["usage"]
    assert usage["completion_tokens"] == 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + 16
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_is_role_then_content_then_the_end() -> None:
    async with serving() as worker:
        whole = await worker.text()
        *chunks, done = await collect(worker)
    assert done == "[DONE]"
    assert (
        len({(c["id"], c["object"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    )
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in chunks), "usage is sent only when it is asked for"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    # Steps that a busy machine lets pile up share an event.
    assert 1 + 1 + 1 <= len(chunks) <= 1 + 16 + 1, "one event for each step at most"
    assert content(chunks) == whole


async def test_usage_comes_last_and_without_choices_when_asked_for() -> None:
    """Fault 41."""
    async with serving() as worker:
        text = "Hello, " * 20
        *chunks, last, done = await collect(worker, text, stream_options={"include_usage": True})
        whole = await worker.answer(text)
    assert done == "[DONE]"
    assert last["choices"] == []
    # It was asked for the second time.
    assert last["usage"].pop("prompt_tokens_details") == {"cached_tokens": 0}
    cached = whole["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert 0 < cached < whole["usage"]["prompt_tokens"], "all but its end was computed before"
    assert last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_batch_equals_alone_streamed_and_not() -> None:
    async with serving() as worker:
        texts = [f"Question {n} " + "x" * 11 * n for n in range(8)]
        alone = [await worker.text(text) for text in texts]
        streams, wholes = await asyncio.gather(
            asyncio.gather(*(collect(worker, text) for text in texts[::2])),
            asyncio.gather(*(worker.text(text) for text in texts[1::2])),
        )
    assert [content(stream) for stream in streams] == alone[::2]
    assert wholes == alone[1::2]


async def test_equal_seeds_give_equal_text_and_no_seed_gives_other_text() -> None:
    """Fault 42."""
    async with serving() as worker:
        seeded: dict[str, Any] = {"temperature": 1.0, "seed": 11, "top_p": 0.95}
        alone = await worker.text(**seeded)
        together = await asyncio.gather(
            worker.text(**seeded), worker.text(temperature=1.0), worker.text(**seeded), worker.text("Other")
        )
        free = await asyncio.gather(*(worker.text(temperature=1.0) for _ in range(4)))
    assert together[0] == together[2] == alone
    assert len(set(free)) == 4


async def test_a_stop_sequence_ends_the_answer_and_what_follows_is_not_billed() -> None:
    """Fault 39, where every character is a token of its own."""
    async with serving() as worker:
        text = await worker.text(max_tokens=40)
        stop = text[9:14]
        end = text.index(stop)
        body = await worker.answer(max_tokens=40, stop=[stop])
        stream = await collect(worker, max_tokens=40, stop=stop, stream_options={"include_usage": True})
    assert body["choices"][0]["message"]["content"] == text[:end]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == end + len(stop)
    assert content(stream) == text[:end]
    assert stream[-2]["usage"]["completion_tokens"] == end + len(stop)


async def test_a_model_that_says_bytes_never_shows_half_a_character() -> None:
    """Fault 39: split characters come whole. Bytes that are no character at all show as U+FFFD."""
    async with serving(Tiny(speaks="bytes")) as worker:
        streams = await asyncio.gather(
            *(collect(worker, temperature=1.5, seed=seed, max_tokens=60) for seed in range(8))
        )
        wholes = await asyncio.gather(
            *(worker.text(temperature=1.5, seed=seed, max_tokens=60) for seed in range(8))
        )
    assert [content(stream) for stream in streams] == wholes
    assert any(ord(character) > 127 for text in wholes for character in text)


async def test_a_model_that_ends_by_itself_stops() -> None:
    async with serving(Tiny(speaks="all")) as worker:
        answers = await asyncio.gather(
            *(worker.answer(temperature=2.0, seed=seed, max_tokens=1500) for seed in range(4))
        )
    reasons = [answer["choices"][0]["finish_reason"] for answer in answers]
    assert "stop" in reasons
    assert not any("<|" in answer["choices"][0]["message"]["content"] for answer in answers)


async def test_without_a_limit_the_answer_ends_with_the_context() -> None:
    async with serving(context=128) as worker:
        body = await worker.answer(max_tokens=None)
        clamped = await worker.answer(max_tokens=10**12)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 128
    assert clamped["usage"]["total_tokens"] == body["usage"]["total_tokens"]


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    """Fault 43."""
    async with serving(context=128) as worker:
        response = await worker.chat("x" * 500)
        health = await worker.health()
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "128 tokens" in error["message"] and " 519." in error["message"]
    assert health["in_flight"] == 0


async def test_a_prompt_that_can_not_possibly_fit_is_refused_at_once() -> None:
    async with serving(context=128) as worker:
        response = await worker.chat("x" * 30_000_000)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "at least" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (json.dumps(chat_body(temperature=9)).encode(), "temperature"),
        (json.dumps({"messages": [{"role": "user"}]}).encode(), "messages[0].content"),
        (b'{"a":' * 50_000, None),
    ],
)
async def test_bad_input_is_a_400_of_openais_shape(body: bytes, param: str | None) -> None:
    async with serving() as worker:
        response = await worker.client.post("/v1/chat/completions", content=body)
        assert await worker.text()
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_an_error_of_a_streamed_request_is_a_status_too() -> None:
    async with serving() as worker:
        response = await worker.chat(stream=True, max_tokens=0)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


async def test_roles_and_tool_turns_are_accepted() -> None:
    """Fault 41."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]
    async with serving() as worker:
        assert await worker.answer(messages=messages)


async def test_models_lists_the_one_model() -> None:
    async with serving() as worker:
        body = (await worker.client.get("/v1/models")).json()
    (card,) = body["data"]
    assert (body["object"], card["id"], card["object"]) == ("list", "tiny", "model")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("GET", "/v1/nonesuch", 404, None),
        ("GET", "/", 404, None),
        ("POST", "/admin/requests//cancel", 404, None),
        ("GET", "/admin/requests/x/cancel", 405, "POST"),
        ("POST", "/admin/requests/x/y/cancel", 404, None),
    ],
)
async def test_unknown_paths_and_methods(method: str, path: str, status: int, allow: str | None) -> None:
    async with serving() as worker:
        response = await worker.client.request(method, path)
    assert response.status_code == status
    assert response.headers.get("allow") == allow
    assert response.json()["error"]["code"] in ("not_found", "method_not_allowed")


async def test_more_requests_than_rows_wait_and_too_many_are_refused() -> None:
    async with serving(Tiny(context=10**6), max_concurrency=2, queue=3) as worker:
        async with worker.stream(max_tokens=ENDLESS), worker.stream(max_tokens=ENDLESS):
            await worker.until(lambda health: health["running"] == 2, "they do not run")
            waiting = [asyncio.create_task(worker.chat()) for _ in range(3)]
            await worker.until(lambda health: health["queued"] == 3, "they do not wait")
            refused = await asyncio.gather(*(worker.chat() for _ in range(4)))
            assert not any(one.done() for one in waiting)
        answers = await asyncio.gather(*waiting)
    assert [response.status_code for response in answers] == [200] * 3
    for response in refused:
        assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
        assert int(response.headers["retry-after"]) >= 1


async def test_fifty_at_once_are_all_answered() -> None:
    async with serving(max_concurrency=8, queue=64) as worker:
        texts = await asyncio.gather(*(worker.text(f"Number {n}", max_tokens=8) for n in range(50)))
    assert all(len(text) == 8 for text in texts)


@pytest.mark.slow
async def test_the_starter_knows_the_capital_of_france(starter: Path) -> None:
    async with serving(directory=starter) as worker:
        body = await worker.answer("What is the capital of France?", max_tokens=20)
        stopped = await worker.text("What is the capital of France?", max_tokens=20, stop="is Par")
    assert body["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert body["choices"][0]["finish_reason"] == "stop"
    assert stopped == "The capital of France "

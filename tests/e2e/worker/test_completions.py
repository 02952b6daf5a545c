"""Text completions with a real worker over its real socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker.serving import ENDLESS, Json, Worker, events, serving
from tests.e2e.worker.test_choices import client
from tests.fixtures.tiny import Tiny


async def post(worker: Worker, **fields: Any) -> Any:
    body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, **fields}
    return await worker.client.post("/v1/completions", json=body)


async def complete(worker: Worker, **fields: Any) -> Json:
    response = await post(worker, **fields)
    assert response.status_code == 200, response.text
    body: Json = response.json()
    return body


async def texts(worker: Worker, **fields: Any) -> list[str]:
    return [choice["text"] for choice in (await complete(worker, **fields))["choices"]]


async def chunks(worker: Worker, **fields: Any) -> list[Any]:
    body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, "stream": True, **fields}
    async with worker.client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        return [event async for event in events(response)]


async def test_a_whole_answer_has_openais_shape() -> None:
    async with serving() as worker:
        body = await complete(worker)
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert len(choice["text"]) == 8
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert body["usage"]["prompt_tokens"] == 5, "no template around it"
    assert body["usage"]["total_tokens"] == 13


async def test_every_shape_of_prompt_says_the_same() -> None:
    tokens = [list(text.encode()) for text in ("Hello", "Another one")]
    async with serving() as worker:
        hello, other = [(await texts(worker, prompt=text))[0] for text in ("Hello", "Another one")]
        assert await texts(worker, prompt=["Hello", "Another one"]) == [hello, other]
        assert await texts(worker, prompt=tokens[0]) == [hello]
        assert await texts(worker, prompt=tokens) == [hello, other]
        both = await complete(worker, prompt=["Hello", "Another one"], n=2)
    assert [choice["text"] for choice in both["choices"]] == [hello, hello, other, other]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert both["usage"]["prompt_tokens"] == 5 + 11, "each prompt counts once"
    assert both["usage"]["completion_tokens"] == 4 * 8


async def test_a_stream_is_the_whole_answer_in_pieces() -> None:
    fields: dict[str, Any] = {"prompt": ["Hello", "there"], "n": 2, "logprobs": 1, "echo": True}
    async with serving() as worker:
        whole = await complete(worker, **fields)
        *stream, done = await chunks(worker, **fields, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert stream[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream[-1]["usage"][name] == whole["usage"][name]
    for index, choice in enumerate(whole["choices"]):
        pieces = [c for chunk in stream for c in chunk["choices"] if c["index"] == index]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        for name in ("tokens", "token_logprobs", "text_offset"):
            told = [value for piece in pieces for value in piece["logprobs"][name]]
            assert told == pytest.approx(choice["logprobs"][name], abs=1e-4) or name == "token_logprobs"
    assert {chunk["object"] for chunk in stream} == {"text_completion"}


async def test_an_echo_begins_with_the_prompt_and_scores_it() -> None:
    async with serving() as worker:
        plain = await complete(worker, logprobs=2)
        echoed = await complete(worker, logprobs=2, echo=True)
        only = await complete(worker, logprobs=2, echo=True, max_tokens=0)
        tokens = await complete(worker, prompt=list(b"Hello"), echo=True)
        # What a prompt's token got is what it would have got as an answer.
        before = await complete(worker, prompt="Hell", logprobs=20, max_tokens=1)
        silent = await chunks(worker, logprobs=1, echo=True, max_tokens=0)
    text = plain["choices"][0]["text"]
    assert echoed["choices"][0]["text"] == "Hello" + text == tokens["choices"][0]["text"]
    scored = echoed["choices"][0]["logprobs"]
    assert scored["tokens"] == list("Hello" + text)
    assert scored["text_offset"] == list(range(13))
    assert scored["token_logprobs"][0] is None and scored["top_logprobs"][0] is None
    assert scored["token_logprobs"][5:] == pytest.approx(plain["choices"][0]["logprobs"]["token_logprobs"])
    assert only["choices"][0]["text"] == "Hello"
    assert only["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(scored["token_logprobs"][:5])
    assert only["usage"]["completion_tokens"] == 0
    top = before["choices"][0]["logprobs"]["top_logprobs"][0]
    if "o" in top:
        assert scored["token_logprobs"][4] == pytest.approx(top["o"], abs=1e-3)
    assert silent[0]["choices"][0]["text"] == "Hello" and silent[-1] == "[DONE]"


async def test_a_long_prompt_is_scored_in_slices_while_others_decode() -> None:
    async with serving(prefill_step=32) as worker, worker.stream(max_tokens=ENDLESS) as running:
        await anext(running)
        prompt = "abcdefghij" * 60
        body = await complete(worker, prompt=prompt, echo=True, logprobs=0, max_tokens=0)
        logprobs = body["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == 600 and logprobs["top_logprobs"] is None
        await anext(running)


async def test_the_legacy_shape_of_log_probabilities() -> None:
    async with serving() as worker:
        zero = (await complete(worker, logprobs=0))["choices"][0]
        five = (await complete(worker, logprobs=5))["choices"][0]
        bytes_of = (await complete(worker, logprobs=1, logit_bias={"200": 100}))["choices"][0]
    assert zero["logprobs"]["top_logprobs"] is None
    assert "".join(zero["logprobs"]["tokens"]) == zero["text"]
    for token, logprob, top in zip(
        five["logprobs"]["tokens"],
        five["logprobs"]["token_logprobs"],
        five["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert len(top) == 5 and top[token] == logprob == max(top.values())
    assert set(bytes_of["logprobs"]["tokens"]) <= {"bytes:\\xc8"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": [263]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": "x" * 10**6}, "prompt"),
        ({"prompt": ["x"] * 200}, "n"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
    ],
)
async def test_what_the_model_cannot_take_is_named(fields: dict[str, Any], param: str) -> None:
    async with serving() as worker:
        response = await post(worker, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert (await worker.health())["in_flight"] == 0


async def test_an_empty_text_begins_one() -> None:
    """With the token that begins a text, where the model has one."""
    async with serving() as worker:
        begins = worker.app and worker.app._model and worker.app._model.tokenizer.bos_token_id
        response = await post(worker, prompt="")
    if begins is None:
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    else:
        assert response.json()["usage"]["prompt_tokens"] == 1


async def test_batch_equals_alone_beside_chats() -> None:
    async with serving() as worker:
        prompts = [f"Text {number} " + "y" * 23 * number for number in range(4)]
        alone = [(await texts(worker, prompt=prompt))[0] for prompt in prompts]
        chat = await worker.text()
        *together, beside = await asyncio.gather(
            *(texts(worker, prompt=prompt) for prompt in prompts), worker.text()
        )
        at_once = await texts(worker, prompt=prompts)
    assert [one[0] for one in together] == alone == at_once
    assert beside == chat


async def test_a_client_that_leaves_ends_all_prompts() -> None:
    async with serving() as worker:
        body = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": ENDLESS, "stream": True}
        async with worker.client.stream("POST", "/v1/completions", json=body) as response:
            await anext(events(response))
            assert (await worker.health())["in_flight"] == 6
        await worker.until(lambda health: not health["in_flight"], "some still run")


async def test_a_stop_sequence_is_reported() -> None:
    async with serving(Tiny(architecture="qwen3")) as worker:
        stop = (await texts(worker, prompt="One", max_tokens=20))[0][6:9]
        body = await complete(worker, prompt="One", max_tokens=20, stop=[stop])
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["stop_reason"]) == ("stop", stop)


async def test_the_official_client_completes_texts() -> None:
    async with serving() as worker, client(worker) as sdk:
        answer = await sdk.completions.create(
            model="tiny", prompt=["Hello", "there"], max_tokens=5, logprobs=2, echo=True, n=2
        )
        assert [choice.text[:5] for choice in answer.choices] == ["Hello", "Hello", "there", "there"]
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        assert "".join(logprobs.tokens) == answer.choices[0].text
        text = ""
        async for chunk in await sdk.completions.create(
            model="tiny", prompt="Hello", max_tokens=5, stream=True
        ):
            text += chunk.choices[0].text
        assert len(text) == 5


@pytest.mark.slow
async def test_a_real_model_goes_on_with_a_text(starter: Path) -> None:
    async with serving(directory=starter) as worker:
        body = await complete(worker, prompt="The capital of France is", max_tokens=4, echo=True, logprobs=1)
    choice = body["choices"][0]
    assert choice["text"].startswith("The capital of France is Paris")
    assert choice["logprobs"]["token_logprobs"][0] is None

"""Sampling, log probabilities and several answers over chat, as a client sees them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.worker.serving import ENDLESS, Json, Worker, serving
from tests.fixtures.tiny import Tiny

ENDS = Tiny(speaks="all", seed=3)


async def chunks(worker: Worker, **fields: Any) -> list[Json]:
    async with worker.stream(**fields) as stream:
        return [event async for event in stream if isinstance(event, dict)]


def text_of(stream: list[Json], index: int) -> str:
    choices = [choice for chunk in stream for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def client(worker: Worker) -> openai.AsyncOpenAI:
    transport = httpx2.AsyncHTTPTransport(uds=str(worker.socket), verify=False)
    return openai.AsyncOpenAI(
        api_key="none",
        base_url="http://worker/v1",
        http_client=httpx2.AsyncClient(transport=transport),
        max_retries=0,
    )


async def test_several_answers_have_one_prompt_and_one_usage() -> None:
    async with serving() as worker:
        alone = await worker.answer()
        greedy = await worker.answer(n=3)
        drawn = await worker.answer(n=3, temperature=1.0)
        again = [await worker.answer(n=3, temperature=1.0, seed=4) for _ in range(2)]
        first = await worker.text(temperature=1.0, seed=4)
    texts = [choice["message"]["content"] for choice in greedy["choices"]]
    assert texts == [alone["choices"][0]["message"]["content"]] * 3
    assert [choice["index"] for choice in greedy["choices"]] == [0, 1, 2]
    assert greedy["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert greedy["usage"]["completion_tokens"] == 3 * 16
    assert greedy["usage"]["total_tokens"] == alone["usage"]["prompt_tokens"] + 48
    assert len({choice["message"]["content"] for choice in drawn["choices"]}) == 3
    seeded = [[choice["message"]["content"] for choice in body["choices"]] for body in again]
    assert seeded[0] == seeded[1] and len(set(seeded[0])) == 3
    assert seeded[0][0] == first


async def test_several_answers_are_streamed_beside_each_other() -> None:
    async with serving() as worker:
        whole = await worker.answer(n=3, temperature=1.0, seed=9)
        stream = await chunks(worker, n=3, temperature=1.0, seed=9, stream_options={"include_usage": True})
    for index, choice in enumerate(whole["choices"]):
        assert text_of(stream, index) == choice["message"]["content"]
    order = [choice["index"] for chunk in stream for choice in chunk["choices"]]
    assert order.index(2) < len(order) - 1 - order[::-1].index(0), "they are interleaved"
    assert len({chunk["id"] for chunk in stream}) == 1
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert stream[-1]["usage"][name] == whole["usage"][name]
    ends = [c["finish_reason"] for chunk in stream for c in chunk["choices"] if c["finish_reason"]]
    assert ends == ["length"] * 3


async def test_more_answers_than_rows_take_turns() -> None:
    async with serving(max_concurrency=2) as worker:
        alone = await worker.text()
        body = await worker.answer(n=7)
        health = await worker.health()
    assert [choice["message"]["content"] for choice in body["choices"]] == [alone] * 7
    assert health["in_flight"] == 0


async def test_more_answers_than_can_wait_are_refused() -> None:
    async with serving(max_concurrency=2, queue=3) as worker:
        response = await worker.chat(n=6)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
        async with worker.stream(max_tokens=ENDLESS) as running:
            await anext(running)
            refused = await worker.chat(n=5)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert (await worker.health())["in_flight"] == 1
        await worker.until(lambda health: not health["in_flight"], "it still runs")


@pytest.mark.parametrize("rows", [2, 8])
async def test_a_client_that_leaves_ends_all_its_answers(rows: int) -> None:
    async with serving(max_concurrency=rows) as worker:
        async with worker.stream(n=5, max_tokens=ENDLESS, temperature=1.0) as stream:
            await anext(stream)
            assert (await worker.health())["in_flight"] == 5
        health = await worker.until(lambda health: not health["in_flight"], "some still run")
        assert health["memory"]["kv_bytes"] == 0 or health["running"] == 0
        assert len(await worker.text()) == 16


async def test_an_operator_ends_all_answers_of_a_request() -> None:
    async with serving() as worker:
        async with worker.stream(n=3, max_tokens=ENDLESS) as stream:
            first = await anext(stream)
            assert isinstance(first, dict)
            assert (await worker.client.post(f"/admin/requests/{first['id']}/cancel")).status_code == 200
            *_, last = [event async for event in stream]
        assert isinstance(last, dict) and last["error"]["code"] == "cancelled"
        await worker.until(lambda health: not health["in_flight"], "some still run")


async def test_log_probabilities_tell_the_text_again() -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12}
    async with serving() as worker:
        body = await worker.answer(**fields)
        stream = await chunks(worker, **fields)
        plain = await worker.answer(logprobs=True)
        none = await worker.answer()
    choice = body["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    for entry in entries:
        assert set(entry) == {"token", "bytes", "logprob", "top_logprobs"}
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["token"] == entry["token"], "temperature 0 takes the likeliest"
        assert entry["logprob"] <= 0
    streamed = [
        entry
        for chunk in stream
        for piece in chunk["choices"]
        if piece["logprobs"]
        for entry in piece["logprobs"]["content"]
    ]
    assert streamed == entries
    assert all(entry["top_logprobs"] == [] for entry in plain["choices"][0]["logprobs"]["content"])
    assert none["choices"][0]["logprobs"] is None


async def test_log_probabilities_of_broken_characters_have_their_bytes() -> None:
    async with serving(Tiny(speaks="bytes", seed=2)) as worker:
        body = await worker.answer(logprobs=True, max_tokens=60, temperature=1.0, seed=1)
    entries = body["choices"][0]["logprobs"]["content"]
    halves = [entry for entry in entries if entry["bytes"][0] >= 0x80]
    assert halves and all(entry["token"] == f"\\x{entry['bytes'][0]:02x}" for entry in halves)
    text = body["choices"][0]["message"]["content"]
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert raw.decode(errors="replace").startswith(text)


async def test_a_stop_sequence_takes_its_log_probabilities_with_it() -> None:
    async with serving() as worker:
        text = await worker.text(max_tokens=40)
        stop = text[9:14]
        shown = text[: text.index(stop)]
        body = await worker.answer(max_tokens=40, stop=[stop, "never"], logprobs=True)
        stream = await chunks(worker, max_tokens=40, stop=[stop], logprobs=True)
    choice = body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == shown
    pieces = [piece for chunk in stream for piece in chunk["choices"] if piece["logprobs"]]
    for piece in pieces:
        told = "".join(entry["token"] for entry in piece["logprobs"]["content"])
        assert told == piece["delta"]["content"], "text and tokens come together"
    assert stream[-1]["choices"][0]["stop_reason"] == stop


async def test_each_choice_has_log_probabilities_of_its_own() -> None:
    async with serving() as worker:
        body = await worker.answer(n=3, temperature=1.0, logprobs=True, top_logprobs=20)
    for choice in body["choices"]:
        entries = choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]


async def test_stop_tokens_least_tokens_and_ignored_ends() -> None:
    async with serving(ENDS) as worker:
        # The first that ends by itself, where numbers are drawn as they were when this was written.
        natural, prompt = await worker.answer("13", max_tokens=60), "13"
        while natural["choices"][0]["finish_reason"] != "stop":
            prompt = str(int(prompt) + 1)
            natural = await worker.answer(prompt, max_tokens=60)
        used = natural["usage"]["completion_tokens"]
        assert natural["choices"][0]["stop_reason"] is None, "the model's own end is no stop of the client's"
        on = await worker.answer(prompt, max_tokens=used + 10, ignore_eos=True)
        held = await worker.answer(prompt, max_tokens=used + 10, min_tokens=used + 5)
    assert (on["choices"][0]["finish_reason"], on["usage"]["completion_tokens"]) == ("length", used + 10)
    assert held["usage"]["completion_tokens"] > used + 5 - 1
    async with serving() as worker:
        text = await worker.text()
        body = await worker.answer(stop_token_ids=[ord(text[5])])
    choice = body["choices"][0]
    assert choice["message"]["content"] == text[: text.index(text[5])]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord(text[5]))
    assert body["usage"]["completion_tokens"] == text.index(text[5]) + 1


async def test_a_bias_chooses_the_token_and_unknown_tokens_are_named() -> None:
    async with serving() as worker:
        assert await worker.text(logit_bias={"81": 100}) == "Q" * 16
        unknown: list[tuple[str, Any]] = [
            ("logit_bias", {"263": 1}),
            ("stop_token_ids", [-1]),
            ("stop_token_ids", [263]),
        ]
        for field, value in unknown:
            response = await worker.chat("Hello", **{field: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, field)


async def test_everything_at_once_is_what_it_is_alone() -> None:
    wanted: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"logit_bias": {"70": 4}, "logprobs": True},
        {"temperature": 1.0, "seed": 3, "xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"temperature": 0.8, "seed": 3, "n": 2, "min_p": 0.05},
        {"stop": ["a", "e"], "min_tokens": 6},
        {},
    ]
    async with serving(max_concurrency=8) as worker:
        alone = [(await worker.answer(**fields))["choices"] for fields in wanted]
        together = [body["choices"] for body in await asyncio.gather(*(worker.answer(**f) for f in wanted))]

    def texts(choices: list[Json]) -> list[str]:
        return [choice["message"]["content"] for choice in choices]

    assert [texts(choices) for choices in together] == [texts(choices) for choices in alone]
    assert alone[0] != alone[6] and alone[1] != alone[6]


async def test_settings_come_after_the_request_and_before_the_models_own() -> None:
    from shared.launch import Sampling

    async with serving(sampling=Sampling(repetition_penalty=1.5, temperature=0)) as worker:
        by_settings = await worker.text(temperature=None)
        by_request = await worker.text(repetition_penalty=1)
    async with serving() as worker:
        assert by_settings == await worker.text(repetition_penalty=1.5)
        assert by_request == await worker.text()


async def test_the_official_client_reads_choices_and_log_probabilities() -> None:
    async with serving() as worker, client(worker) as sdk:
        answer = await sdk.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello"}],
            n=2,
            logprobs=True,
            top_logprobs=2,
            max_completion_tokens=5,
            logit_bias={"81": 1},
        )
        assert len(answer.choices) == 2
        logprobs = answer.choices[1].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert "".join(entry.token for entry in logprobs.content) == answer.choices[1].message.content
        assert len(logprobs.content[0].top_logprobs) == 2
        text = ["", ""]
        stream = await sdk.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello"}],
            n=2,
            logprobs=True,
            max_tokens=5,
            stream=True,
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text[choice.index] += choice.delta.content or ""
        assert all(len(one) == 5 for one in text)


@pytest.mark.slow
async def test_a_real_model_is_sure_of_paris(starter: Path) -> None:
    async with serving(directory=starter) as worker:
        body = await worker.answer(
            "What is the capital of France?", n=2, logprobs=True, top_logprobs=2, max_tokens=12
        )
    for choice in body["choices"]:
        assert choice["message"]["content"].startswith("The capital of France is Paris")
        entries = {entry["token"]: entry["logprob"] for entry in choice["logprobs"]["content"]}
        assert entries[" Paris"] > -0.5

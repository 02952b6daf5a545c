"""A worker with a draft, as clients and the supervisor see it: the same answers, and what came of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.status import Failed
from tests.e2e.worker.serving import ENDLESS, Json, Worker, content, serving
from tests.fixtures.adapters import write_adapter
from tests.fixtures.tiny import Tiny, tiny_model

TEXT = "Tell me something long enough to be kept for the next time"
ITSELF = str(tiny_model())
STRANGER = str(tiny_model(Tiny(seed=9, layers=1)))

REQUESTS: dict[str, Json] = {
    "greedy": {"max_tokens": 60},
    "seeded": {"temperature": 1.0, "seed": 7, "top_p": 0.9, "max_tokens": 60},
    "two stops": {"stop": ["e", "ab"], "max_tokens": 60},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {"65": 2}},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "two answers": {"n": 2, "temperature": 1.0, "seed": 3},
    "json": {"response_format": {"type": "json_object"}, "max_tokens": 40},
}


@pytest.fixture
async def plain() -> AsyncIterator[Worker]:
    async with serving() as worker:
        yield worker


@pytest.fixture(params=[ITSELF, STRANGER], ids=["itself", "a stranger"])
async def drafted(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    async with serving(draft=request.param) as worker:
        yield worker


def details(body: Json) -> Json:
    found: Json = body["usage"]["completion_tokens_details"]
    return found


def said(body: Json) -> list[Any]:
    """All that a client sees but the last digits of probabilities."""
    choices = body["choices"]
    for choice in choices:
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            entry["logprob"] = round(entry["logprob"], 2)
            del entry["top_logprobs"]
    return [choices, body["usage"]["completion_tokens"], body["usage"]["prompt_tokens"]]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("drafted", [ITSELF], ids=["itself"], indirect=True)
async def test_answers_are_those_without_a_draft(name: str, plain: Worker, drafted: Worker) -> None:
    expected = await plain.answer(TEXT, **REQUESTS[name])
    assert said(await drafted.answer(TEXT, **REQUESTS[name])) == said(expected)
    assert "accepted_prediction_tokens" not in details(expected)


async def test_what_came_of_proposals_is_told() -> None:
    async with serving(draft=ITSELF, draft_tokens=3) as worker:
        before = await worker.health()
        assert before["draft"] == {"steps": 0, "proposed": 0, "accepted": 0}
        async with worker.client.stream("GET", "/admin/events") as events:
            lines = events.aiter_lines()
            assert "memory" in await anext(lines)
            body = await worker.answer(TEXT, max_tokens=41)
            while '"finished"' not in (line := await anext(lines)) or body["id"] not in line:
                pass
        counts = details(body)
        # The first two tokens come without the draft, which still reads, then three of each four are its.
        assert counts["accepted_prediction_tokens"] >= 25
        assert counts["rejected_prediction_tokens"] == 0
        proposed = counts["accepted_prediction_tokens"]
        assert f'"proposed_tokens":{proposed},"accepted_tokens":{proposed}' in line
        after = await worker.health()
        assert after["draft"]["accepted"] == after["draft"]["proposed"] == proposed
        assert after["steps"] - before["steps"] < 41
    async with serving() as without:
        assert (await without.health())["draft"] is None


async def test_a_bad_draft_is_told_too() -> None:
    async with serving(draft=STRANGER) as worker:
        counts = details(await worker.answer(TEXT, max_tokens=100))
        assert counts["rejected_prediction_tokens"] > 4 * counts["accepted_prediction_tokens"]
        # It is asked for less and less: one proposal a step in the end.
        assert counts["rejected_prediction_tokens"] < 110


async def test_a_stop_in_the_middle_of_proposals(plain: Worker) -> None:
    """What was proposed beyond the stop counts as rejected, and nothing of it is said."""
    whole = await plain.text(TEXT, max_tokens=60)
    async with serving(draft=ITSELF, draft_tokens=16) as worker:
        for end in (20, 27, 33):
            stop = whole[end : end + 3]
            body = await worker.answer(TEXT, max_tokens=60, stop=stop)
            assert body["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
            assert details(body)["rejected_prediction_tokens"] > 0
        assert await worker.text(TEXT, max_tokens=60) == whole


@pytest.mark.slow
async def test_streams_that_join_and_leave_each_other(plain: Worker, drafted: Worker) -> None:
    lengths = [90, 20, 50, 7]
    expected = [await plain.text(f"{TEXT} {length}", max_tokens=length) for length in lengths]

    async def streamed(length: int, after: int) -> str:
        found = []
        async with drafted.stream(f"{TEXT} {length}", max_tokens=length) as events:
            async for event in events:
                found.append(event)
        return content(found)

    for _ in range(2):
        texts = await asyncio.gather(*(streamed(length, after) for after, length in enumerate(lengths)))
        assert texts == expected


async def test_a_cancelled_answer_is_gone_within_a_step(drafted: Worker) -> None:
    async with drafted.stream(TEXT, max_tokens=ENDLESS) as events:
        for _ in range(3):
            await anext(events)
        assert (await drafted.health())["running"] == 1
    await drafted.until(lambda health: health["in_flight"] == 0, "the row is still there", within_s=5)


async def test_an_adapter_on_the_model_alone(tmp_path: Path) -> None:
    folders = {"sql": str(write_adapter(tmp_path / "sql"))}
    async with serving(adapters=folders) as plain, serving(adapters=folders, draft=ITSELF) as worker:
        for adapter in ("sql", "none", "sql"):
            expected = await plain.text(TEXT, adapter=adapter, max_tokens=40)
            assert await worker.text(TEXT, adapter=adapter, max_tokens=40) == expected
        draft = (await worker.health())["draft"]
        assert 0 < draft["accepted"] < draft["proposed"], "right about the model, not about the adapter"


async def test_conversations_go_on_from_memory_and_disk(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700)
    history = [{"role": "user", "content": TEXT * 3}]
    async with serving() as plain:
        first = await plain.text(messages=history, max_tokens=40)
        history += [{"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
        second = await plain.text(messages=history, max_tokens=40)
    async with serving(draft=STRANGER, saved_state=str(folder)) as worker:
        assert await worker.text(messages=history[:1], max_tokens=40) == first
        body = await worker.answer(messages=history, max_tokens=40)
        assert body["choices"][0]["message"]["content"] == second
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
        await worker.client.post("/admin/drain", json={})
    async with serving(draft=ITSELF, saved_state=str(folder)) as worker:
        body = await worker.answer(messages=history, max_tokens=40)
        assert body["choices"][0]["message"]["content"] == second
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


async def test_the_drafts_memory_is_counted_and_freed() -> None:
    async with (
        serving(prompt_cache_bytes=0) as plain,
        serving(prompt_cache_bytes=0, draft=STRANGER) as worker,
    ):

        async def memory(of: Worker) -> Json:
            body: Json = (await of.client.get("/admin/memory")).json()
            return body

        assert (await memory(plain))["draft_bytes"] == 0
        held = await memory(worker)
        assert 0 < held["draft_bytes"] < held["weights_bytes"] == (await memory(plain))["weights_bytes"]
        await worker.text(TEXT)
        await worker.until(lambda health: health["memory"]["kv_bytes"] > 0, "what the draft read is counted")
        freed = (await worker.client.post("/admin/memory/trim", json={})).json()
        assert freed["freed_bytes"] > 0
        await worker.until(lambda health: health["memory"]["kv_bytes"] == 0, "what the draft read is freed")
        assert await worker.text(TEXT) == await plain.text(TEXT)


async def test_a_draft_that_can_not_be_used_fails_the_load(tmp_path: Path) -> None:
    async with serving(draft=str(tmp_path / "gone"), wait=False) as worker:
        assert worker.ended is not None
        await asyncio.wait({worker.ended})
        failed = worker.said[-1]
    assert isinstance(failed, Failed)
    assert failed.message.startswith("its draft: there is no model in")

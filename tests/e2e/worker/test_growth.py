"""Answers that become longer than was foreseen, on a worker whose share is as tight as a test makes it."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest

from shared.activity import MemoryReading, decode_activity
from shared.status import Memory
from tests.e2e.worker.serving import Json, Worker, content, serving
from tests.fixtures.tiny import Tiny
from worker.engine.needs import cap_for
from worker.engine.opening import most_scores
from worker.engine.share import Share

STEP = 64
"""Tokens by which rows take memory here, so that short answers need several."""
LONG = 220
AMPLE = 2**40
SPEAKS = Tiny("qwen3", speaks="ascii")


class Asked(NamedTuple):
    """What a worker had when it began to ask for more."""

    wanted_bytes: int
    running: int
    reserved_bytes: int


class Tight(Worker):
    """A worker that is told how many steps of one row there is room for. It hears all that is asked for."""

    @property
    def _share(self) -> Any:
        assert self.app is not None and self.app._share is not None
        return self.app._share

    def cap(self, steps: int, rows: int = 1) -> int:
        """What it must be allowed to take for so many rows of so many steps."""
        return cap_for(self._share._needs.batch_bytes([steps * STEP] * rows), self._share._fixed_bytes)

    async def limit(self, cap: int, **more: Any) -> Memory:
        answer = await self.client.post("/admin/memory/limit", json={"bytes": cap, **more})
        memory: Json = answer.json()["memory"]
        return Memory(**memory)

    async def memory(self) -> Memory:
        return Memory(**(await self.client.get("/admin/memory")).json())

    @contextlib.asynccontextmanager
    async def granting(self) -> AsyncIterator[list[Asked]]:
        """Give it whatever it asks for, as a supervisor with much memory would. What it asked for."""
        assert self.app is not None
        admission, share, asked = self.app._admission, self._share, list[Asked]()
        nudge = admission.on_want

        def note() -> None:
            if share.wanted_bytes:
                asked.append(Asked(share.wanted_bytes, admission.running, share.reserved_bytes))
            nudge()

        admission.on_want = note
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=240) as client,
            client.stream("GET", "/admin/events") as feed,
        ):

            async def grant() -> None:
                async for line in feed.aiter_lines():
                    said = decode_activity(line.encode())
                    if isinstance(said, MemoryReading) and said.memory.wanted_bytes:
                        assert said.memory.wanted_to_go_on
                        await self.limit(said.memory.wanted_bytes)

            granting = asyncio.create_task(grant())
            try:
                yield asked
            finally:
                granting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await granting


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tight]:
    monkeypatch.setattr("worker.engine.needs._STEP", STEP)
    monkeypatch.setattr("worker.reply.FORESEEN", STEP // 2)
    monkeypatch.setattr("worker.reply.PIECE", 3 * STEP // 4)
    monkeypatch.setattr("worker.reply.AHEAD", STEP // 4)
    async with serving(SPEAKS, memory_bytes=AMPLE - 1, budget_bytes=AMPLE) as plain:
        plain.__class__ = Tight
        assert isinstance(plain, Tight)
        yield plain


def ends(stream: list[Json | str]) -> list[str]:
    """Why the answers of a stream ended."""
    assert stream[-1] == "[DONE]", stream[-1]
    choices = [event["choices"][0] for event in stream if isinstance(event, dict) and event.get("choices")]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def of_answer(stream: list[Json | str], index: int) -> list[Json | str]:
    return [
        event
        for event in stream
        if isinstance(event, dict) and event.get("choices") and event["choices"][0]["index"] == index
    ]


async def test_what_a_growing_answer_needs_is_asked_for_before_it_needs_it(worker: Tight) -> None:
    whole = await worker.text(max_tokens=LONG)
    await worker.limit(worker.cap(1))
    async with worker.granting() as asked, worker.stream(max_tokens=LONG) as stream:
        events = [event async for event in stream]
    assert content(events) == whole
    # This test may be late to answer; but it asked while it ran.
    sizes = [ask.wanted_bytes for ask in asked if ask.running]
    assert len(sizes) >= 3 and sizes == sorted(set(sizes)), "piece by piece"
    assert sizes[-1] <= worker.cap(LONG // STEP + 2)
    allowed = worker.cap(1)
    for ask in asked:
        assert ask.reserved_bytes <= allowed
        allowed = ask.wanted_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.2, "logprobs": True},
        {"guided_regex": "([a-f]{3}[0-9]){99}", "temperature": 1.0, "seed": 2},
    ],
)
async def test_an_answer_that_is_given_nothing_waits_and_goes_on_as_if_nothing_had_been(
    worker: Tight, fields: Json
) -> None:
    whole = await worker.answer(max_tokens=150, **fields)
    await worker.limit(worker.cap(1))
    answer = asyncio.ensure_future(worker.answer(max_tokens=150, **fields))
    for steps in (2, 3):
        await worker.until(lambda health: health["memory"]["stalled"], "it does not wait")
        health = await worker.health()
        assert (health["running"], health["queued"], health["in_flight"]) == (0, 1, 1)
        memory = await worker.memory()
        # It holds nothing that it could not give back.
        assert memory.reserved_bytes == worker._share._fixed_bytes and memory.wanted_to_go_on
        assert worker.cap(steps - 1) < memory.wanted_bytes
        await worker.client.post("/admin/memory/trim")
        await worker.limit(memory.wanted_bytes if steps == 3 else worker.cap(2))
    body = await answer
    # The prompt of the first one was not known before.
    for usage in (whole["usage"], body["usage"]):
        del usage["prompt_tokens_details"]
    assert body["usage"] == whole["usage"]
    (got,), (expected,) = body["choices"], whole["choices"]
    assert got["message"] == expected["message"] and got["finish_reason"] == expected["finish_reason"]
    if got["logprobs"] is not None:
        # What was computed one by one at first was then computed together: the last digits differ.
        told = [[entry["logprob"] for entry in choice["logprobs"]["content"]] for choice in (got, expected)]
        assert told[0] == pytest.approx(told[1], abs=1e-3)


async def test_the_first_goes_on_in_the_room_of_the_one_that_came_later(worker: Tight) -> None:
    assert worker.app is not None
    texts = [await worker.text(name, max_tokens=150) for name in "ab"]
    # For both as long as they are short, and for one of them alone to its end.
    await worker.limit(worker.cap(1, rows=2))
    begun = {name: asyncio.Event() for name in "ab"}
    ended = list[str]()

    async def read(name: str) -> str:
        async with worker.stream(name, max_tokens=150) as stream:
            events = []
            async for event in stream:
                events.append(event)
                begun[name].set()
        ended.append(name)
        assert ends(events) == ["length"]
        return content(events)

    first = asyncio.ensure_future(read("a"))
    await begun["a"].wait()
    both_there = threading.Event()
    held = worker.app._engine.call(both_there.wait)
    second = asyncio.ensure_future(read("b"))
    await worker.until(lambda health: health["running"] == 2, "the second does not run beside it")
    await worker.limit(worker.cap(3))
    both_there.set()
    await held
    await begun["b"].wait()
    assert await first == texts[0] and ended == ["a"]
    assert await second == texts[1]


async def test_an_answer_of_several_that_is_to_be_given_back_waits_for_room_instead(worker: Tight) -> None:
    """The client had the first one when the second was given back, and got an error for it."""
    whole = await worker.answer(n=2, max_tokens=30, temperature=1.0, seed=1)
    await worker.limit(worker.cap(1))
    async with worker.stream(n=2, max_tokens=30, temperature=1.0, seed=1) as stream:
        events = [await anext(stream)]
        await worker.limit(1, back=True)
        await worker.until(lambda health: health["memory"]["stalled"], "the second does not wait")
        assert (await worker.health())["queued"] == 1
        await worker.limit(worker.cap(1))
        events += [event async for event in stream]
    assert ends(events) == ["length", "length"]
    for index, choice in enumerate(whole["choices"]):
        assert content(of_answer(events, index)) == choice["message"]["content"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_could_only_go_on_if_this_model_left_ends_or_is_given_back(
    worker: Tight, streamed: bool
) -> None:
    await worker.limit(worker.cap(1))
    answer = asyncio.ensure_future(worker.chat(max_tokens=LONG, stream=streamed))
    await worker.until(lambda health: health["memory"]["stalled"], "it does not wait")
    await worker.limit(worker.cap(1), back=True)
    assert (await worker.health())["in_flight"] == 1, "the others may leave first"
    await worker.limit(worker.cap(1), back=True, cut=True)
    response = await answer
    if streamed:
        lines = response.text.split("\n\n")
        assert '"finish_reason":"length"' in lines[-3] and lines[-2] == "data: [DONE]"
    else:
        assert (response.status_code, response.headers["x-handed-back"]) == (503, "1")
    assert (await worker.health())["in_flight"] == 0
    await worker.limit(AMPLE)
    assert len(await worker.text()) == 16


async def test_where_there_never_is_more_an_answer_ends_at_that(
    worker: Tight, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the rows of a model as small as this would have more than enough.
    monkeypatch.setattr(Share._left, "__kwdefaults__", {"least_bytes": 0})
    await worker.limit(worker.cap(1), most_bytes=worker.cap(2))
    answer = asyncio.ensure_future(worker.answer(max_tokens=LONG))
    await worker.until(lambda health: health["memory"]["wanted_bytes"] > 0, "it does not ask")
    assert (await worker.memory()).wanted_bytes <= worker.cap(2)
    await worker.limit(worker.cap(2), most_bytes=worker.cap(2))
    body = await answer
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 2 * STEP


async def test_the_scores_that_a_step_computes_follow_the_share(worker: Tight) -> None:
    assert worker.app is not None and worker.app._model is not None
    engine, model = worker.app._engine, worker.app._model

    async def compared() -> int:
        return await engine.call(lambda: 0 if engine._batch is None else engine._batch.most_scores)

    for cap in (worker.cap(1), worker.cap(50), worker.cap(2)):
        await worker.limit(cap)
        assert await compared() == most_scores(model, int(0.05 * cap)) > 0

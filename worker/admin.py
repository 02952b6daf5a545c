"""The admin routes, on the worker's socket only."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from shared.activity import Activity, MemoryReading, RequestFinished
from shared.admin import (
    Adapter,
    AdaptersAsked,
    AdaptersMounted,
    Cancelled,
    DraftStats,
    DrainAsked,
    Drained,
    Health,
    Leased,
    LimitAsked,
    Limited,
    MemoryAsked,
    MemoryCompleted,
    MemoryInput,
    MemoryOutput,
    TrimAsked,
    Trimmed,
    WorkerState,
)
from shared.errors import PublicError, invalid
from shared.launch import LaunchRecord
from shared.status import Memory
from worker.api.exchange import Exchange
from worker.api.validation import check_range, decode
from worker.completion import Completions
from worker.engine.activity import Feed
from worker.engine.admission import Admission
from worker.engine.jobs import Jobs
from worker.engine.prompt_state import PromptState
from worker.engine.share import Share
from worker.engine.thread import Engine
from worker.engine.turns import Lease
from worker.request import Asked, Message, Request
from worker.text.events import Finished, FinishReason, TextDelta

NDJSON: Final = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store"))
MAX_MEMORY_INPUTS: Final = 64
MAX_DRAIN_MS: Final = 86_400_000
_READING_S: Final = 1.0
_CHANGE: Final = 0.01
"""A memory reading is news when a figure moved by this share of the footprint."""
_ASKS: Final = ("wanted_bytes", "wanted_to_go_on", "stalled")
"""What is news however little it changed."""


class Admin:
    """All admin routes of one worker. `completions` is None while the model loads."""

    def __init__(
        self,
        *,
        record: LaunchRecord,
        engine: Engine,
        admission: Admission,
        feed: Feed,
        jobs: Jobs,
        read_memory: Callable[[], Memory],
    ) -> None:
        self._record = record
        self._engine = engine
        self._admission = admission
        self._feed = feed
        self._jobs = jobs
        self._read_memory = read_memory
        self.completions: Completions | None = None
        self.state: PromptState | None = None
        """What is kept of earlier prompts. None while the model loads."""
        self.share: Share | None = None
        """What it may take. None while the model loads."""

    async def health(self, exchange: Exchange) -> None:
        admission = self._admission
        health = Health(
            state=self._state(),
            model=self._record.model,
            pid=os.getpid(),
            generation=self._record.generation,
            in_flight=admission.in_flight,
            running=admission.running,
            queued=admission.queued,
            leases=admission.leases,
            steps=self._engine.steps,
            memory=self._read_memory(),
            draft=self._draft_stats(),
            tokens=self._engine.tokens,
        )
        await exchange.answer(200, msgspec.json.encode(health))

    def _draft_stats(self) -> DraftStats | None:
        counts = self._engine.speculated
        return None if counts is None else DraftStats(counts.steps, counts.proposed, counts.accepted)

    def _state(self) -> WorkerState:
        if self.completions is None:
            return "loading"
        if self._admission.draining:
            return "draining"
        return "leased" if self._admission.leased else "ready"

    async def lease(self, exchange: Exchange) -> None:
        """The open response is the lease."""
        await exchange.body()
        asked_at = time.monotonic()
        with exchange.while_connected():
            async with self._leased():
                waited_ms = round(1000 * (time.monotonic() - asked_at))
                await exchange.start(200, NDJSON)
                await exchange.write(msgspec.json.encode(Leased(waited_ms=waited_ms)) + b"\n")
                # Until the holder disconnects, which ends the block.
                await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def _leased(self) -> AsyncIterator[Lease]:
        granted = asyncio.Event()
        lease = Lease(granted.set)
        self._admission.lease(lease)
        try:
            await granted.wait()
            yield lease
        finally:
            self._admission.release(lease)

    async def drain(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body() or b"{}", DrainAsked)
        check_range(asked.timeout_ms, "timeout_ms", 0, MAX_DRAIN_MS)
        started = time.monotonic()
        idle = asyncio.Event()
        self._admission.drain(idle.set)
        # Draining goes on if the asker leaves: what was begun is not taken back.
        with exchange.while_connected(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked.timeout_ms / 1000):
                await idle.wait()
        left_s = asked.timeout_ms / 1000 - (time.monotonic() - started)
        if self.state is not None and left_s > 0:
            await self.state.save(left_s)
        answer = Drained(
            drained=not self._admission.in_flight,
            in_flight=self._admission.in_flight,
            waited_ms=round(1000 * (time.monotonic() - started)),
        )
        await exchange.answer(200, msgspec.json.encode(answer))

    async def memory(self, exchange: Exchange) -> None:
        await exchange.answer(200, msgspec.json.encode(self._read_memory()))

    async def trim(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body() or b"{}", TrimAsked)
        check_range(asked.bytes, "bytes", 0, float("inf"))
        if self.state is None:
            raise loading()
        with exchange.while_connected():
            freed = await self.state.trim(asked.bytes)
        await exchange.answer(200, msgspec.json.encode(Trimmed(freed, self._read_memory())))

    async def limit(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), LimitAsked)
        check_range(asked.bytes, "bytes", 0, float("inf"))
        if self.share is None:
            raise loading()
        check_range(asked.most_bytes, "most_bytes", 0, float("inf"))
        left = self.share.limit(
            asked.bytes, most_bytes=asked.most_bytes, pinned=asked.pinned, back=asked.back, cut=asked.cut
        )
        await exchange.answer(200, msgspec.json.encode(Limited(left.kv_bytes, self._read_memory())))

    async def cache(self, exchange: Exchange) -> None:
        if self.state is None:
            raise loading()
        await exchange.answer(200, msgspec.json.encode(self.state.stats()))

    async def complete(self, exchange: Exchange) -> None:
        """Internal completions, alone in the engine, answered in the order of the inputs."""
        asked = decode(await exchange.body(), MemoryAsked)
        inputs = asked.input if isinstance(asked.input, list) else [asked.input]
        check_range(asked.max_tokens, "max_tokens", 1, float("inf"))
        if not 0 < len(inputs) <= MAX_MEMORY_INPUTS:
            raise invalid(f"`input` must have 1 to {MAX_MEMORY_INPUTS} entries.", param="input")
        completions = self._loaded()
        rows = asyncio.Semaphore(self._record.options.max_concurrency)

        async def one(item: MemoryInput, lease: Lease) -> MemoryOutput:
            system = () if item.system is None else (Message("system", item.system),)
            request = Request(
                messages=(*system, Message("user", item.user)),
                sampling=Asked(temperature=0.0),
                max_tokens=asked.max_tokens,
            )
            async with rows, completions.open(request, prefix="memory", lease=lease) as reply:
                text = ""
                async for events in reply.batches():
                    text += "".join(event.text for event in events if isinstance(event, TextDelta))
                    if isinstance(end := events[-1], Finished):
                        reason: FinishReason = "length" if end.reason == "length" else "stop"
                        return MemoryOutput(text, reason, end.usage.prompt, end.usage.completion)
            raise AssertionError("a reply ends with Finished or an error")

        try:
            with exchange.while_connected():
                async with self._leased() as lease, asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(item, lease)) for item in inputs]
        except* PublicError as errors:
            raise _first(errors) from None
        body = MemoryCompleted(asked.stage, [task.result() for task in tasks])
        await exchange.answer(200, msgspec.json.encode(body))

    async def events(self, exchange: Exchange) -> None:
        subscription = self._feed.subscribe()
        try:
            with exchange.while_connected():
                await exchange.start(200, NDJSON)
                said = self._read_memory()
                await exchange.write(_lines([MemoryReading(time.monotonic(), said)]))
                while True:
                    lines = await subscription.take(_READING_S)
                    memory = self._read_memory()
                    finished = any(isinstance(line, RequestFinished) for line in lines)
                    if finished or _moved(said, memory):
                        said = memory
                        lines.append(MemoryReading(time.monotonic(), memory))
                    if lines:
                        await exchange.write(_lines(lines))
        finally:
            self._feed.unsubscribe(subscription)

    async def adapters(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), AdaptersAsked)
        mounts = self._loaded().mounts
        for field in {"list": (), "unmount": ("name",), "mount": ("name", "path")}[asked.action]:
            if getattr(asked, field) is None:
                raise invalid(f"`{field}` is required.", param=field, code="missing_required_parameter")
        # What was begun is finished, even if the asker leaves.
        if asked.action == "mount":
            await mounts.mount(asked.name or "", asked.path or "")
        elif asked.action == "unmount":
            await mounts.unmount(asked.name or "")
        body = AdaptersMounted([Adapter(one.name, one.path, one.bytes) for one in mounts.all()])
        await exchange.answer(200, msgspec.json.encode(body))

    async def cancel(self, exchange: Exchange, request_id: str) -> None:
        if not self._loaded().cancel(request_id) and not self._jobs.cancel(request_id):
            raise PublicError(404, "request_not_found", "No request with this id is in flight.")
        await exchange.answer(200, msgspec.json.encode(Cancelled(request_id)))

    def _loaded(self) -> Completions:
        if self.completions is None:
            raise loading()
        return self.completions


def loading() -> PublicError:
    return PublicError(503, "loading", "The model is still being loaded; try again.", retry_after_s=1)


def _first(errors: BaseExceptionGroup[PublicError]) -> PublicError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _moved(before: Memory, now: Memory) -> bool:
    if any(getattr(now, name) != getattr(before, name) for name in _ASKS):
        return True
    tolerance = _CHANGE * max(before.footprint_bytes, 1)
    figures = ("active_bytes", "cache_bytes", "footprint_bytes", "kv_bytes", "reserved_bytes")
    return any(abs(getattr(now, name) - getattr(before, name)) > tolerance for name in figures)


def _lines(activities: list[Activity]) -> bytes:
    return b"".join(msgspec.json.encode(activity) + b"\n" for activity in activities)

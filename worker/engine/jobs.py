"""Work on the engine that is no row of the batch: scoring answers, embedding texts.

It takes a place in the same line as the rows, and runs in slices between the steps of the batch. One slice at
a time, so that rows wait for one of them at most, however many jobs there are.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Generic, Literal, TypeVar

from shared.activity import RequestFinished, RequestStarted
from shared.errors import PublicError
from worker.engine.activity import REQUEST_ID, Feed
from worker.engine.admission import Admission
from worker.engine.thread import Engine
from worker.engine.turns import Turn

T = TypeVar("T")

Work = Generator[None, None, T]
"""What to do on the engine's thread. It yields where rows may take a step."""


class _End(Generic[T]):
    """The last slice's result."""

    def __init__(self, result: T) -> None:
        self.result = result


class Job:
    """One request's place in the line and its work; see Jobs.open."""

    def __init__(self, jobs: "Jobs", kind: str, adapter: str) -> None:
        self.id = f"{kind}-{secrets.token_hex(12)}"
        self.turn = Turn(self._start, lambda: self._length, adapter=adapter, refuse=self.fail)
        self._kind = kind
        self._jobs = jobs
        self._begun = time.monotonic()
        self._prompt_tokens = 0
        self._length = 0
        self._started = asyncio.Event()
        self._awaited: asyncio.Future[object] | None = None
        self._error: PublicError | None = None
        self.cached_tokens = 0
        """Tokens of its prompts that needed no computing, for the feed."""
        self.busy = False
        """Whether its work may still be in the engine; then the place in the line is given back by itself."""

    def _start(self) -> None:
        self._jobs.make_room()
        self._started.set()

    def fail(self, error: PublicError) -> None:
        """End it with an error, wherever it waits."""
        self._error = error
        self._started.set()
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)

    async def run(self, work: Work[T], *, prompt_tokens: int, length: int | None = None) -> T:
        """Wait for a free place, then do `work` slice by slice.

        `length` is how many tokens it holds the state of at once; None is those of the prompt. Raises
        PublicError when they can't fit, and when it was ended.
        """
        self._prompt_tokens = prompt_tokens
        self._length = prompt_tokens if length is None else length
        self._jobs.admission.check(self._length)
        jobs = self._jobs
        jobs.feed.say(
            RequestStarted(self.id, time.monotonic(), self._kind, prompt_tokens, request_id=REQUEST_ID.get())
        )
        jobs.admission.ready(self.turn)
        await self._started.wait()
        end: _End[T] | None = None
        self.busy = True
        try:
            while end is None:
                if self._error is not None:
                    raise self._error
                async with jobs.one:
                    end = await self._slice(work)
        finally:
            if end is None:
                # What it holds belongs to the engine's thread, which may be in the middle of a slice.
                jobs.engine.call(work.close).add_done_callback(self._closed)
            else:
                self.busy = False
        return end.result

    async def _slice(self, work: Work[T]) -> _End[T] | None:
        engine = self._jobs.engine

        def step() -> _End[T] | None:
            engine.steps += 1
            # Whoever runs beside it has the same one, so this changes it before the first slice at most.
            engine.select(self.turn.adapter)
            try:
                next(work)
            except StopIteration as end:
                return _End(end.value)
            return None

        future = engine.call(step)
        self._awaited = future  # type: ignore[assignment]  # only ever given an exception
        return await future

    def _closed(self, closing: asyncio.Future[None]) -> None:
        self.busy = False
        self._jobs.admission.leave(self.turn)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            raise error

    def end(self, ending: Literal["stop", "cancelled", "failed"]) -> None:
        now = time.monotonic()
        self._jobs.feed.say(
            RequestFinished(
                self.id,
                now,
                ending,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self.cached_tokens,
                completion_tokens=0,
                total_s=now - self._begun,
            )
        )


class Jobs:
    """All jobs of one worker. Everything here runs on the event loop but for the work itself."""

    def __init__(self, engine: Engine, admission: Admission, feed: Feed) -> None:
        self.engine = engine
        self.admission = admission
        self.feed = feed
        self.one = asyncio.Lock()
        """Held for a slice. Who waits gets it in turn."""
        self._open: set[Job] = set()
        self.make_room: Callable[[], None] = lambda: None
        """Makes what is kept of earlier prompts give way; called when a job begins."""
        self.refusal: PublicError | None = None
        """Why this worker takes no jobs, when it does not."""

    @asynccontextmanager
    async def open(self, kind: str, *, adapter: str = "") -> AsyncIterator[Job]:
        """Admit a job; `kind` is for the feed, `adapter` the identity of the one it runs with.

        Raises PublicError 429 and 503 from admission, and 501 where there are no jobs.
        """
        if self.refusal is not None:
            raise self.refusal
        job = Job(self, kind, adapter)
        self.admission.admit(job.turn)
        self._open.add(job)
        ending: Literal["stop", "cancelled", "failed"] = "cancelled"
        try:
            yield job
            ending = "stop"
        except Exception as error:
            ending = "cancelled" if getattr(error, "code", None) == "cancelled" else "failed"
            raise
        finally:
            self._open.discard(job)
            if not job.busy:
                self.admission.leave(job.turn)
            job.end(ending)

    def cancel(self, job_id: str) -> bool:
        """End the job with this id; False when there is none."""
        for job in self._open:
            if job.id == job_id:
                job.fail(PublicError(499, "cancelled", "The request was cancelled by the operator."))
                return True
        return False

    def fail_all(self, error: PublicError) -> None:
        for job in list(self._open):
            job.fail(error)

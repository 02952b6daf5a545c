"""Responses that are answered while nobody waits: asked for again and again, or followed from anywhere.

Source: OpenAI's guide, "Background mode".
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from shared import sse
from shared.errors import PublicError
from shared.headers import Headers
from shared.responses.answer import Response, lifecycle_event
from supervisor.history.history import INTERRUPTED, History
from supervisor.relay import Slots, warnings_in_stream
from supervisor.responses.answering import answer
from supervisor.responses.condensing import fitted
from supervisor.responses.transcript import EVENT_END, Transcript
from supervisor.responses.turns import Resolved
from supervisor.telemetry.timelines import Mark, Timelines

_ANNOUNCED: Final = 2
"""Events before the worker's first: created and queued."""
_PING_S: Final = 15.0
CANCELLED: Final = 499
"""The status in the timeline of what its client did not want any more; nobody gets it."""


class Background:
    """Owns the tasks."""

    def __init__(self, history: History, pool: Slots, timelines: Timelines) -> None:
        self._history = history
        self._pool = pool
        self._timelines = timelines
        self._running: dict[str, Run] = {}

    async def begin(self, request: Resolved, naming: Headers = (), mark: Mark | None = None) -> "Run":
        """Line it up; it is kept from here on. Raises DatabaseError.

        `naming` are headers for the worker; `mark` is of its timeline, which ends with the response.
        """
        run = Run(request, self._history, self._pool, naming, mark)
        await self._history.keep_now(run.response, request.turn(background=True))
        self._running[request.context.id] = run
        if mark is not None:
            mark.goes_on = True

        def over(status: int) -> None:
            self._running.pop(request.context.id, None)
            if mark is not None:
                self._timelines.end(mark, status)

        run.start(over)
        return run

    def get(self, response_id: str) -> "Run | None":
        """One that is under way."""
        return self._running.get(response_id)

    def __len__(self) -> int:
        return len(self._running)

    async def close(self) -> None:
        """Wait for what is under way; its workers have been ended, so it is over soon."""
        runs = list(self._running.values())
        for run in runs:
            run.interrupt(PublicError(503, "stopping", INTERRUPTED))
        for run in runs:
            await run.wait()


class Run:
    """One response under way, and its events so far."""

    def __init__(
        self, request: Resolved, history: History, pool: Slots, naming: Headers, mark: Mark | None
    ) -> None:
        self._request = request
        self._history = history
        self._pool = pool
        self._naming = naming
        self._mark = mark
        queued = request.announced("queued")
        self._events = [
            lifecycle_event("response.created", queued, 0),
            lifecycle_event("response.queued", queued, 1),
        ]
        self._transcript = Transcript(queued, _ANNOUNCED - 1)
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._why: PublicError | None = None
        self._status = CANCELLED

    @property
    def response(self) -> Response:
        """As far as it has come."""
        response = self._transcript.response
        assert response is not None
        begun = response["status"] == "queued" and len(self._events) > _ANNOUNCED
        return {**response, "status": "in_progress"} if begun else response

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its worker warned of so far."""
        return self._transcript.warnings

    @property
    def over(self) -> bool:
        """Its last event is there, though it may not be kept yet."""
        return self._transcript.ended

    @property
    def streamed(self) -> bool:
        return bool(self._request.asked.stream)

    def start(self, over: Callable[[int], object]) -> None:
        """Begin; `over` is called when it is over and kept, with the status that says how it went."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"background {self._request.context.id}"
        )
        # So that one that is cancelled before it began is over as well.
        self._task.add_done_callback(lambda _: over(self._status))

    async def follow(self, after: int = -1) -> AsyncIterator[bytes]:
        """The events with a higher number than `after`, to the last one, and pings while there are none.

        What the worker warns of from now on comes as comments.
        """
        position, warned = after + 1, bool(self.warnings)
        while True:
            more, events = self._more, self._events[position:]
            if self.warnings and not warned:
                warned = True
                yield warnings_in_stream(self.warnings)
            if events:
                position += len(events)
                yield b"".join(events)
            elif self._transcript.ended:
                return
            else:
                try:
                    async with asyncio.timeout(_PING_S):
                        await more.wait()
                except TimeoutError:
                    yield sse.PING

    async def cancel(self) -> Response:
        """Stop it. Returns the response as it is kept."""
        self.interrupt(None)
        await self.wait()
        return self.response

    def interrupt(self, why: PublicError | None) -> None:
        """Stop it: by the client's wish, or as a failure."""
        self._why = why
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Until it is over and kept."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        transcript, self._status = self._transcript, 200
        try:
            if self._request.asked.truncation == "auto":
                self._request = await fitted(self._request, self._pool)
            await answer(
                self._request,
                self._pool,
                transcript,
                self._hear,
                announced=_ANNOUNCED,
                naming=self._naming,
                mark=self._mark,
            )
        except PublicError as error:
            self._status = error.status
            await self._hear([transcript.fail(error)])
        except asyncio.CancelledError:
            # Only `interrupt` cancels it; the task ends here either way.
            if not transcript.ended:
                self._status = CANCELLED if self._why is None else self._why.status
                await self._hear([transcript.stop() if self._why is None else transcript.fail(self._why)])
        finally:
            events = b"".join(self._events) if self.streamed else None
            turn = self._request.turn(self.warnings, background=True)
            self._history.keep(self.response, turn, events=events)

    async def _hear(self, events: list[bytes]) -> None:
        self._events += [event for event in events if event.startswith(b"event: ")]
        self._more.set()
        self._more = asyncio.Event()


def replay(response: Response, events: bytes | None, after: int) -> bytes:
    """The events of a response that is over, with a higher number than `after`; always with its last one.

    Those of a response that a stop of the server interrupted are lost but for what it was in the end.
    """
    if events:
        kept = [event + EVENT_END for event in events.split(EVENT_END) if event]
        return b"".join(kept[after + 1 :])
    name = "incomplete" if response["status"] == "incomplete" else "failed"
    if response["status"] == "completed":
        name = "completed"
    return lifecycle_event(f"response.{name}", response, max(after + 1, _ANNOUNCED))

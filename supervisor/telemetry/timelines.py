"""What became of each of the last requests, and when: `GET /stats?request=ID`, and an event for each.

The front and the relay mark what they see, and the model's worker tells of the rest by the id that it was
given. All processes read one monotonic clock. A request keeps one record of moments, its mark: what is shown,
told and logged of it is made of that when somebody wants it.
"""

import asyncio
import time
from collections import OrderedDict, deque
from typing import Any, Final

import msgspec

from shared.activity import Activity, FirstToken, RequestFinished, RequestStarted
from supervisor.telemetry.events import FINISHED, Event, Events

KEPT: Final = 1000
_LATE_S: Final = 1.0
"""What the worker tells may come so long after the end of the answer."""
_PAUSE_S: Final = 0.1
"""Between two looks for those of which it has not told by then, at least."""


class Timeline(msgspec.Struct, omit_defaults=True):
    """One request. What ends in `_ms` is the time since the request came; absent is what did not happen."""

    id: str
    received_at: float
    """Wall clock, seconds since 1970."""
    route: str
    model: str | None = None
    model_state: str | None = None
    """Of the model's worker when the request came: with `ready`, all waiting was for a place."""
    parsed_ms: float | None = None
    """Its body was there and its model known."""
    placed_ms: float | None = None
    """It had a place at a ready worker, after the queue and the load."""
    prepared_ms: float | None = None
    """The worker knew its prompt."""
    admitted_ms: float | None = None
    """It was in the running batch."""
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    ended_ms: float | None = None
    """The answer was complete, or the client was gone."""
    status: int | None = None
    """499 is a client that left."""
    ended: str | None = None
    """As the worker says it: `stop`, `length`, `cancelled`, `failed`."""
    tokens_in: int | None = None
    tokens_cached: int | None = None
    tokens_out: int | None = None
    warnings: tuple[str, ...] = ()
    """The `Warning` headers of its worker's answer: what of it is not done as asked."""


class Mark(msgspec.Struct, gc=False, eq=False):
    """The record of one request: moments of the monotonic clock, None for what did not happen.

    A thousand are kept and nothing in them refers to anything, so the garbage collector need not know them.
    """

    id: str
    route: str
    came_at: float
    wall: float
    """When it came by the wall clock, seconds since 1970."""
    model: str | None = None
    model_state: str | None = None
    parsed_at: float | None = None
    placed_at: float | None = None
    prepared_at: float | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    ended: str | None = None
    tokens_in: int | None = None
    tokens_cached: int | None = None
    tokens_out: int | None = None
    warnings: tuple[str, ...] = ()
    told: bool = False
    """Whether the event of its end was told."""
    goes_on: bool = False
    """The request is answered in the background: it outlasts the connection that it came on."""
    worker_id: tuple[str, str] | None = None
    """Model and the worker's own name of it, once a worker has it."""

    def parsed(self, model: str, state: str | None) -> None:
        """Its body is there and its model is known."""
        self.model, self.model_state, self.parsed_at = model, state, time.monotonic()

    def placed(self) -> None:
        """It has a place at a ready worker."""
        self.placed_at = time.monotonic()

    def timeline(self) -> Timeline:
        """What is shown of it."""
        return Timeline(self.id, self.wall, **self.story(), warnings=self.warnings)

    def story(self) -> dict[str, Any]:
        """What happened, as a `Timeline` names it and in its order, from the route on: its event."""
        told: dict[str, Any] = {"route": self.route}
        came_at = self.came_at
        if self.model is not None:
            told["model"] = self.model
        if self.model_state is not None:
            told["model_state"] = self.model_state
        if self.parsed_at is not None:
            told["parsed_ms"] = _ms(self.parsed_at - came_at)
        if self.placed_at is not None:
            told["placed_ms"] = _ms(self.placed_at - came_at)
        if self.prepared_at is not None:
            told["prepared_ms"] = _ms(self.prepared_at - came_at)
        if self.admitted_at is not None:
            told["admitted_ms"] = _ms(self.admitted_at - came_at)
        if self.first_token_at is not None:
            told["first_token_ms"] = _ms(self.first_token_at - came_at)
        if self.last_token_at is not None:
            told["last_token_ms"] = _ms(self.last_token_at - came_at)
        if self.ended_at is not None:
            told["ended_ms"] = _ms(self.ended_at - came_at)
        if self.status is not None:
            told["status"] = self.status
        if self.ended is not None:
            told["ended"] = self.ended
        if self.tokens_in is not None:
            told["tokens_in"] = self.tokens_in
        if self.tokens_cached is not None:
            told["tokens_cached"] = self.tokens_cached
        if self.tokens_out is not None:
            told["tokens_out"] = self.tokens_out
        return told


def _ms(seconds: float) -> float:
    """Milliseconds, to the thousandth."""
    return int(1e6 * seconds + 0.5) / 1000


class Timelines:
    """Those of the last requests. Belongs to one event loop."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._marks: OrderedDict[str, Mark] = OrderedDict()
        self._running: dict[tuple[str, str], Mark] = {}
        """By `worker_id`: those that are to be found by name, and older ones whose answers are not over. A
        worker that was killed never tells of the end of what it had."""
        self._untold: deque[Mark] = deque()
        """Those whose answers are over, in that order. Some were told of since."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, name: str, route: str, came_at: float) -> Mark:
        """A request that came when the monotonic clock was at `came_at`."""
        mark = Mark(name, route, came_at, time.time())
        marks = self._marks
        if (older := marks.pop(name, None)) is not None:
            self._drop(older)
        marks[name] = mark
        if len(marks) > KEPT:
            self._drop(marks.popitem(last=False)[1])
        return mark

    def _drop(self, mark: Mark) -> None:
        """It is not found any more. Until it is told of, its worker is listened to."""
        if mark.told:
            self._part(mark)

    def _part(self, mark: Mark) -> None:
        """No worker has it any more, or nobody wants to know."""
        if mark.worker_id is not None:
            self._running.pop(mark.worker_id, None)
            mark.worker_id = None

    def end(self, mark: Mark, status: int) -> None:
        """The answer is over."""
        mark.ended_at, mark.status = time.monotonic(), status
        if mark.ended is not None:
            self._tell(mark)
            return
        # One timer for all of them, set for the first.
        self._untold.append(mark)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATE_S, self._tell_late)

    def hear(self, model: str, activity: Activity) -> None:
        """A worker tells of a request."""
        match activity:
            case RequestStarted(request_id=str(name)) if name in self._marks:
                mark = self._marks[name]
                # One whose worker died has a second one.
                self._part(mark)
                mark.worker_id = model, activity.id
                self._running[mark.worker_id] = mark
                mark.prepared_at, mark.tokens_in = activity.at, activity.prompt_tokens
            case FirstToken():
                if (found := self._running.get((model, activity.id))) is not None:
                    found.first_token_at = activity.at
                    found.admitted_at = activity.at - activity.ttft_s + activity.queued_s
            case RequestFinished():
                if (found := self._running.get((model, activity.id))) is not None:
                    self._part(found)
                    self._finished(found, activity)
            case _:
                pass

    def _finished(self, mark: Mark, activity: RequestFinished) -> None:
        mark.last_token_at, mark.ended = activity.at, activity.reason
        mark.tokens_in, mark.tokens_cached = activity.prompt_tokens, activity.cached_tokens
        mark.tokens_out = activity.completion_tokens
        if mark.ended_at is not None and not mark.told:
            self._tell(mark)

    def find(self, name: str) -> Timeline | None:
        """The timeline of the last request that was called so."""
        mark = self._marks.get(name)
        return None if mark is None else mark.timeline()

    def running(self) -> list[Timeline]:
        """Of requests that are not over, the oldest first."""
        return [mark.timeline() for mark in self._marks.values() if mark.ended_at is None]

    def close(self) -> None:
        """Tell of what nothing more will be heard about."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_ended_before(time.monotonic())

    def _tell_late(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._tell_ended_before(now - _LATE_S)
        if self._untold:
            due_s = (self._untold[0].ended_at or now) + _LATE_S - now
            self._timer = asyncio.get_running_loop().call_later(max(due_s, _PAUSE_S), self._tell_late)

    def _tell_ended_before(self, moment: float) -> None:
        untold = self._untold
        while untold and (untold[0].told or (untold[0].ended_at or 0.0) <= moment):
            mark = untold.popleft()
            if not mark.told:
                self._tell(mark)

    def _tell(self, mark: Mark) -> None:
        mark.told = True
        if self._marks.get(mark.id) is not mark:
            self._part(mark)
        story = mark.story()
        story["request"] = mark.id
        self._events.tell(Event(time.time(), FINISHED, "info", story))

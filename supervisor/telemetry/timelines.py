"""What became of each of the last requests, and when: `GET /stats?request=ID`, and an event for each.

The front and the relay mark what they see, and the model's worker tells of the rest by the id that it was
given. All processes read one monotonic clock.
"""

import asyncio
import time
from collections import OrderedDict
from typing import Final

import msgspec

from shared.activity import Activity, FirstToken, RequestFinished, RequestStarted
from supervisor.telemetry.events import Events

KEPT: Final = 1000
_LATE_S: Final = 1.0
"""What the worker tells may come so long after the end of the answer."""


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


class Mark:
    """Writes one timeline."""

    __slots__ = ("_came", "line")

    def __init__(self, line: Timeline, came: float) -> None:
        self.line = line
        self._came = came

    def since(self, now: float | None = None) -> float:
        """Milliseconds from when the request came to `now`, which is the monotonic clock's."""
        return round(1000 * ((time.monotonic() if now is None else now) - self._came), 3)

    def parsed(self, model: str, state: str | None) -> None:
        self.line.model, self.line.model_state, self.line.parsed_ms = model, state, self.since()

    def placed(self) -> None:
        self.line.placed_ms = self.since()


class Timelines:
    """Those of the last requests. Belongs to one event loop."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._marks: OrderedDict[str, Mark] = OrderedDict()
        self._running: dict[tuple[str, str], Mark] = {}
        """By model and the worker's own name of it."""
        self._untold: dict[int, tuple[Mark, asyncio.TimerHandle]] = {}

    def begin(self, name: str, route: str, came: float) -> Mark:
        """A request that came when the monotonic clock was at `came`."""
        mark = Mark(Timeline(name, time.time(), route), came)
        self._marks.pop(name, None)
        self._marks[name] = mark
        if len(self._marks) > KEPT:
            self._marks.popitem(last=False)
        return mark

    def end(self, mark: Mark, status: int) -> None:
        """The answer is over."""
        mark.line.ended_ms, mark.line.status = mark.since(), status
        if mark.line.ended is not None:
            self._tell(mark)
            return
        timer = asyncio.get_running_loop().call_later(_LATE_S, self._tell_late, id(mark))
        self._untold[id(mark)] = (mark, timer)

    def hear(self, model: str, activity: Activity) -> None:
        """A worker tells of a request."""
        match activity:
            case RequestStarted(request_id=str(name)) if name in self._marks:
                mark = self._marks[name]
                self._running[model, activity.id] = mark
                mark.line.prepared_ms = mark.since(activity.at)
                mark.line.tokens_in = activity.prompt_tokens
            case FirstToken():
                if (found := self._running.get((model, activity.id))) is not None:
                    found.line.first_token_ms = found.since(activity.at)
                    found.line.admitted_ms = found.since(activity.at - activity.ttft_s + activity.queued_s)
            case RequestFinished():
                if (found := self._running.pop((model, activity.id), None)) is not None:
                    self._finished(found, activity)
            case _:
                pass

    def _finished(self, mark: Mark, activity: RequestFinished) -> None:
        line = mark.line
        line.last_token_ms, line.ended = mark.since(activity.at), activity.reason
        line.tokens_in, line.tokens_cached = activity.prompt_tokens, activity.cached_tokens
        line.tokens_out = activity.completion_tokens
        untold = self._untold.pop(id(mark), None)
        if untold is not None:
            untold[1].cancel()
            self._tell(mark)

    def find(self, name: str) -> Timeline | None:
        """The timeline of the last request that was called so."""
        mark = self._marks.get(name)
        return None if mark is None else mark.line

    def running(self) -> list[Timeline]:
        """Of requests that are not over, the oldest first."""
        return [mark.line for mark in self._marks.values() if mark.line.ended_ms is None]

    def close(self) -> None:
        """Tell of what nothing more will be heard about."""
        for mark, timer in list(self._untold.values()):
            timer.cancel()
            self._tell(mark)
        self._untold.clear()

    def _tell_late(self, key: int) -> None:
        mark, _ = self._untold.pop(key)
        self._tell(mark)

    def _tell(self, mark: Mark) -> None:
        fields = msgspec.to_builtins(mark.line)
        fields["request"] = fields.pop("id")
        fields.pop("received_at")
        self._events.emit("request.finished", **fields)

"""Tells the residency policy when time has passed: one timer, set for when that may change something."""

import asyncio
import functools
from collections.abc import Callable
from typing import Final

_LONGEST_TIMER_S: Final = 86_400.0


class Ticker:
    """`due` says when `tick` may have something to do, given the time; both in seconds of the loop."""

    def __init__(self, due: Callable[[float], float | None], tick: Callable[[float], None]) -> None:
        self._due = due
        self._tick = tick
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        """The loop's time at which it comes."""

    def plan(self) -> None:
        """Called whenever time may have something to change. A timer too early only looks again."""
        self._plan_after(self._loop.time())

    def close(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # The one that it lives in. Python up to 3.11 asks the system for our pid each time.
        return asyncio.get_running_loop()

    def _plan_after(self, now: float) -> None:
        due_s = self._due(now)
        if due_s is None or (self._timer is not None and self._timer_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = min(due_s, now + _LONGEST_TIMER_S)
        self._timer = self._loop.call_at(self._timer_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # One time for both: what came due between two of them would be seen by neither.
        now = self._loop.time()
        self._tick(now)
        self._plan_after(now)

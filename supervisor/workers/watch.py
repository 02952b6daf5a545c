"""Looks after one serving worker: often while it has work, rarely while it has not."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from shared.admin import Health
from supervisor.settings import WatchSettings
from supervisor.workers.control import NoAnswer, ask_health
from supervisor.workers.upstream import Upstream
from supervisor.workers.watchdog import Watchdog

BUSY_S: Final = 1.0
"""Between two looks at a worker that has something to do."""
IDLE_S: Final = 15.0
"""Between two looks at one that has not; `touch` wakes the watch."""


class Watch:
    """Asks for the worker's health and judges it. `on_health` hears every answer."""

    def __init__(
        self,
        upstream: Upstream,
        settings: WatchSettings,
        *,
        is_busy: Callable[[], bool],
        on_health: Callable[[Health], None],
    ) -> None:
        self._upstream = upstream
        self._is_busy = is_busy
        self._on_health = on_health
        self._slice_s = min(BUSY_S, settings.silence_s / 4)
        self._dog = Watchdog(
            silence_s=settings.silence_s, stall_s=settings.stall_s, longest_s=2 * max(BUSY_S, self._slice_s)
        )
        self._nudge: asyncio.Future[None] | None = None

    def touch(self) -> None:
        """Work has come. Does nothing while the watch is awake, so it may be called for every request."""
        if self._nudge is not None and not self._nudge.done():
            self._nudge.set_result(None)

    async def run(self, until: set[asyncio.Future[Any]]) -> str | None:
        """Watch until one of `until` is done (None), or the worker hangs: why it must be killed."""
        loop = asyncio.get_running_loop()
        answered_s = loop.time()
        busy = True
        while True:
            if busy:
                await first(until, BUSY_S)
            else:
                self._nudge = loop.create_future()
                await first({*until, self._nudge}, IDLE_S)
                busy = self._nudge.done()
                self._nudge = None
                if busy:
                    continue
            if _any_done(until):
                return None
            # Asked before the look, so that one more follows the end of the work.
            busy = self._is_busy()
            cause, health = await self._look(until)
            if health is not None:
                cause = self._dog.answered(health, loop.time() - answered_s)
                answered_s = loop.time()
                busy = busy or health.in_flight > 0 or health.leases > 0
                self._on_health(health)
            else:
                busy = True
            if cause is not None or _any_done(until):
                return None if _any_done(until) else cause

    async def _look(self, until: set[asyncio.Future[Any]]) -> tuple[str | None, Health | None]:
        """One question; a verdict when the answer has been missing for too long."""
        loop = asyncio.get_running_loop()
        question = asyncio.ensure_future(ask_health(self._upstream))
        try:
            asked_s = loop.time()
            while True:
                await first({*until, question}, self._slice_s)
                if question.done():
                    return None, question.result()
                if _any_done(until):
                    return None, None
                cause = self._dog.unanswered(loop.time() - asked_s)
                asked_s = loop.time()
                if cause is not None:
                    return cause, None
        except NoAnswer as answer:
            # Refused at once; the next look comes after BUSY_S.
            return None if answer.ours else self._dog.unanswered(BUSY_S), None
        finally:
            await drop(question)


async def first(futures: set[asyncio.Future[Any]], timeout_s: float | None) -> None:
    """Wait until one is done, or the time is over. Nothing is cancelled."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def drop(task: asyncio.Future[Any]) -> None:
    """Cancel a task of our own and see its end; what it would have said does not matter any more."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, NoAnswer):
        await task


def _any_done(futures: set[asyncio.Future[Any]]) -> bool:
    return any(future.done() for future in futures)

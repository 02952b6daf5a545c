"""Somebody who watches events from outside and may be slow: what is missed is counted, nobody waits."""

import asyncio
from collections import deque
from typing import Final

from supervisor.telemetry.events import Event, Events

_WAITING: Final = 1000
"""Events that wait for a slow watcher; the oldest goes first."""

SHOWN: Final = (
    "config.",
    "download.",
    "lease.",
    "memory.",
    "model.",
    "preload.",
    "request.",
    "spare.",
    "supervisor.",
    "worker.",
    "workers.",
)
"""Kinds that are shown outside, by how they begin. Others tell of files and libraries and stay in the log."""


class Watcher:
    """Events from now on, for as long as it is open. `async with` or `close` ends it."""

    def __init__(self, events: Events) -> None:
        self._waiting: deque[Event] = deque(maxlen=_WAITING)
        self._arrived = asyncio.Event()
        self._leave = events.subscribe(self._take)
        self.missed = 0
        """Events that were thrown away since `take` told last."""

    def _take(self, event: Event) -> None:
        if not event.kind.startswith(SHOWN):
            return
        if len(self._waiting) == _WAITING:
            self.missed += 1
        self._waiting.append(event)
        self._arrived.set()

    async def take(self, *, timeout_s: float) -> tuple[list[Event], int]:
        """What has come, waiting for the first up to `timeout_s`, and how many were missed before it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return [], 0
        self._arrived.clear()
        taken, missed = list(self._waiting), self.missed
        self._waiting.clear()
        self.missed = 0
        return taken, missed

    def close(self) -> None:
        self._leave()

"""The feed of what the worker does, for whoever listens on `/admin/events`."""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final

from shared.activity import Activity, Dropped

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The `x-request-id` of the HTTP request that the current task serves."""

_BACKLOG: Final = 1024
"""Lines kept for a slow reader."""


class Subscription:
    """One listener's bounded backlog."""

    def __init__(self) -> None:
        self._lines: deque[Activity] = deque()
        self._dropped = 0
        self._filled = asyncio.Event()

    def put(self, activity: Activity) -> None:
        if len(self._lines) >= _BACKLOG:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append(activity)
        self._filled.set()

    def wake(self) -> None:
        """End the wait of `take`, with whatever there is."""
        self._filled.set()

    async def take(self, timeout_s: float) -> list[Activity]:
        """Everything new; waits for the first, up to `timeout_s`, and returns nothing then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        except TimeoutError:
            return []
        self._filled.clear()
        taken: list[Activity] = list(self._lines)
        self._lines.clear()
        if self._dropped:
            taken.insert(0, Dropped(self._dropped))
            self._dropped = 0
        return taken


class Feed:
    """Hands every line to every listener. What is said while there is none, the next one gets: the first
    requests come as soon as the worker is ready, and their supervisor's listener may come after them."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._unheard = Subscription()

    @property
    def heard(self) -> bool:
        return bool(self._subscriptions)

    def say(self, activity: Activity) -> None:
        for subscription in self._subscriptions or (self._unheard,):
            subscription.put(activity)

    def nudge(self) -> None:
        """Something has changed that is told with the next line."""
        for subscription in self._subscriptions:
            subscription.wake()

    def subscribe(self) -> Subscription:
        subscription, self._unheard = self._unheard, Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

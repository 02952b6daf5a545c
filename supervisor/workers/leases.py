"""Leases of the whole machine: who wants it, who holds it, and the exclusive use of each worker meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from supervisor.telemetry.events import Events
from supervisor.workers.keeper import Life
from supervisor.workers.upstream import UpstreamError
from supervisor.workers.watch import drop, first

_AGAIN_S: Final = 0.5


class LeaseView(msgspec.Struct, frozen=True):
    """Somebody who wants the machine for himself, or has it."""

    holder: str
    """In words that he chose: a command, a program's name."""
    unload: bool
    """Whether the models are unloaded for it."""
    granted: bool
    since_s: float
    """How long he has had it, or has waited for it."""


class LeaseNews(msgspec.Struct, frozen=True):
    """One line of the answer to who wants the machine."""

    state: Literal["waiting", "leased", "ended"]
    waited_ms: int
    """How long it was waited for."""
    reason: str | None = None
    """What is waited for, or why it ended."""


class MachineLease:
    """One who wants the machine. `granted` is done when he has it."""

    def __init__(self, number: int, holder: str, *, unload: bool) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.holder = holder
        self.unload = unload
        self.since_s = loop.time()
        self.granted: asyncio.Future[None] = loop.create_future()
        self.given_back: asyncio.Future[None] = loop.create_future()
        """Done when the supervisor takes it back, because it ends."""

    def grant(self) -> None:
        self.since_s = asyncio.get_running_loop().time()
        if not self.granted.done():
            self.granted.set_result(None)

    def take_back(self) -> None:
        """The supervisor ends, and with it all there was to be leased."""
        if not self.given_back.done():
            self.given_back.set_result(None)

    def view(self, now: float) -> LeaseView:
        return LeaseView(self.holder, self.unload, self.granted.done(), round(now - self.since_s, 3))


class WorkerLeases:
    """The leases that we hold on our own workers. `on_taken` hears of each that was given."""

    def __init__(self, events: Events, on_taken: Callable[[str], None]) -> None:
        self._events = events
        self._on_taken = on_taken
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def take(self, model_id: str, life: Life) -> None:
        """Ask the worker for exclusive use, and keep it until `give_back` or the worker's end."""
        self.give_back(model_id)
        task = asyncio.get_running_loop().create_task(self._hold(model_id, life), name=f"lease of {model_id}")
        self._tasks[model_id] = task

        def over(task: asyncio.Task[None]) -> None:
            # By itself: the worker has died.
            if self._tasks.get(model_id) is task:
                del self._tasks[model_id]

        task.add_done_callback(over)

    def give_back(self, model_id: str) -> None:
        """End the use, or the wait for it."""
        task = self._tasks.pop(model_id, None)
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all."""
        for model_id in list(self._tasks):
            self.give_back(model_id)
        for task in list(self._ending):
            await drop(task)

    async def _hold(self, model_id: str, life: Life) -> None:
        exited = life.process.exited
        while not exited.done():
            try:
                # The head comes when the worker's batch is empty; the open answer is the lease.
                async with await life.upstream.request("POST", b"/admin/lease") as response:
                    if response.status == 200:
                        await anext(response, b"")
                        self._on_taken(model_id)
                        await response.read()
                        return
                    reason = f"it answered {response.status}"
            except UpstreamError as error:
                reason = str(error)
            if exited.done():
                return
            self._events.emit("lease.refused", level="warning", model=model_id, reason=reason)
            await first({exited}, _AGAIN_S)

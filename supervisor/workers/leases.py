"""Leases of the whole machine: who wants it, who holds it, and the exclusive use of each worker meanwhile."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import psutil

from supervisor.telemetry.events import Events
from supervisor.workers.family import runs
from supervisor.workers.keeper import Life
from supervisor.workers.upstream import UpstreamError
from supervisor.workers.watch import drop, first

_AGAIN_S: Final = 0.5


class LeaseView(msgspec.Struct, frozen=True):
    """Somebody who wants the machine for himself, or has it."""

    holder: str
    """In words that he chose, a command or a program's name, and the process, where that is known."""
    unload: bool
    """Whether the models are unloaded for it."""
    granted: bool
    since_s: float
    """How long he has had it, or has waited for it."""
    pid: int | None = None
    """The process that holds it: the command of a `run` once it has begun, else the one that asked for it.
    None where the system does not tell, as over TCP, and when that process has ended: then one that it
    started has the connection still."""


class LeaseNews(msgspec.Struct, frozen=True):
    """One line of the answer to who wants the machine."""

    state: Literal["waiting", "leased", "ended"]
    waited_ms: int
    """How long it was waited for."""
    reason: str | None = None
    """What is waited for, or why it ended."""
    token: str | None = None
    """With `leased`: proves to `POST /api/lease/own` that one acts for who has it."""


class MachineLease:
    """One who wants the machine. `granted` is done when he has it."""

    def __init__(self, number: int, holder: str, *, unload: bool, pid: int | None = None) -> None:
        """`pid` is the process that asks for it."""
        loop = asyncio.get_running_loop()
        self.number = number
        self.unload = unload
        self.token = os.urandom(24).hex()
        """Nobody can guess it, and no other lease ever had it."""
        self._words = holder
        self._asker = _process(pid)
        self._command: psutil.Process | None = None
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

    def begin(self, command_pid: int) -> bool:
        """Whoever asked for it runs this command now, which has the connection as well.

        Whether that is so: it must run, as a child of his. In a container pids are other processes'.
        """
        command = _process(command_pid)
        with contextlib.suppress(psutil.Error):
            if command is not None and self._asker is not None and command.ppid() == self._asker.pid:
                self._command = command
                return True
        return False

    @property
    def pid(self) -> int | None:
        """See `LeaseView`."""
        process = self._command or self._asker
        return process.pid if process is not None and runs(process) else None

    @property
    def name(self) -> str:
        """Who it is or was, in words."""
        process = self._command or self._asker
        return self._words if process is None else f"{self._words} (pid {process.pid})"

    @property
    def holder(self) -> str:
        """Who it is now, in words."""
        process = self._command or self._asker
        if process is None or runs(process):
            return self.name
        return f"{self._words} (pid {process.pid}, which has ended, but not what it started)"

    @property
    def is_left(self) -> bool:
        """Whether the command that it was for has ended, and who ran that: what else has the connection was
        started by the command, and left behind."""
        known = self._command is not None and self._asker is not None
        return known and not any(runs(process) for process in (self._command, self._asker) if process)

    def view(self, now: float) -> LeaseView:
        granted = self.granted.done()
        return LeaseView(self.holder, self.unload, granted, round(now - self.since_s, 3), self.pid)


def _process(pid: int | None) -> psutil.Process | None:
    try:
        return None if pid is None else psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError):
        return None  # it has ended already, or there never was one


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

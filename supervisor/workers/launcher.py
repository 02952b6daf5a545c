"""Starts worker processes, and keeps a spare one that has its imports done."""

import asyncio
import os
from collections.abc import Mapping, Sequence

from shared.launch import Preview
from supervisor.telemetry.events import Events
from supervisor.workers.exits import Exit
from supervisor.workers.ledger import Entry, Ledger
from supervisor.workers.process import WorkerProcess
from supervisor.workers.restarts import RestartPolicy


class Launcher:
    """Gives out worker processes that wait for their launch record."""

    def __init__(
        self,
        command: Sequence[str],
        ledger: Ledger,
        events: Events,
        *,
        keep_spare: bool,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = tuple(command)
        self._ledger = ledger
        self._events = events
        self._keep_spare = keep_spare
        self._environ = environ
        self._policy = RestartPolicy()
        self._closing = False
        self._given_up = False
        self._spare: WorkerProcess | None = None
        self._preview: Preview | None = None
        """What the next load is likely to be of."""
        self._raising: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def keep_spare(self, wanted: bool) -> None:
        """Whether there is to be a spare from now on; one that is there serves the next load."""
        self._keep_spare = wanted
        if wanted:
            self.replenish()

    @property
    def spare(self) -> WorkerProcess | None:
        """The process that waits for the next load, if one is there and alive."""
        return self._spare

    def expect(self, preview: Preview | None) -> None:
        """The next load is likely to be of this: the spare, or the next one, looks ahead for it."""
        if preview == self._preview:
            return
        self._preview = preview
        if self._spare is not None:
            self._spare.preview(Preview(None) if preview is None else preview)

    async def take(self) -> WorkerProcess:
        """The spare, or else a new process. Raises OSError when none can be started."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.state == "spare":
            return spare
        return await self._spawn()

    def replenish(self, *, encouraged: bool = False) -> None:
        """See to it that there is a spare soon. `encouraged` after a load that went well: try anew."""
        if encouraged and self._given_up:
            self._given_up = False
            self._policy.forget()
        if not self._keep_spare or self._closing or self._given_up or self._spare is not None:
            return
        if self._raising is None and self._retry is None:
            self._raising = asyncio.create_task(self._raise_spare(), name="start of the spare worker")

    async def stop(self, *, grace_s: float) -> None:
        """End the spare. Processes that were taken belong to who took them."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._raising is not None:
            await self._raising
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.stop(grace_s=grace_s)

    async def _spawn(self) -> WorkerProcess:
        process = await WorkerProcess.spawn(self._command, self._environ)
        self._ledger.add(Entry(process.pid, process.created_s, process.command))
        process.exited.add_done_callback(lambda _: self._ledger.remove(process.pid))
        return process

    async def _raise_spare(self) -> None:
        started_s = asyncio.get_running_loop().time()
        try:
            process = await self._spawn()
        except OSError as error:
            self._raising = None
            self._lost(started_s, f"it could not be started: {error.strerror or error}")
            return
        self._raising = None
        self._spare = process
        if self._preview is not None:
            process.preview(self._preview)
        self._events.emit("spare.starting", pid=process.pid)

        def ended(exited: asyncio.Future[Exit]) -> None:
            if self._spare is process:
                self._spare = None
                self._lost(started_s, exited.result().describe())

        process.exited.add_done_callback(ended)

    def _lost(self, started_s: float, how: str) -> None:
        if self._closing:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._policy.died(started_s, loop.time(), served=True)
        self._given_up = wait_s is None
        self._events.emit("spare.lost", level="warning", how=how, gives_up=self._given_up)
        if wait_s is not None:
            self._retry = loop.call_later(wait_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.replenish()

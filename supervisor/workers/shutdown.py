"""The end of all workers: asked to finish, then told to hurry, and not waited for for ever."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from supervisor.telemetry.events import Events
from supervisor.workers.keepers import Keepers
from supervisor.workers.launcher import Launcher
from supervisor.workers.watch import drop, first

_UNKILLABLE_S: Final = 2.0
"""Past every grace: how long a process may take to die of SIGKILL before we end without it."""


class Shutdown:
    """Begins with `begin`, which asks whoever has work to finish it; when all have ended, `finish` closes the
    rest. `errands` are tasks that nobody else waits for."""

    def __init__(
        self,
        keepers: Keepers,
        launcher: Launcher,
        errands: Collection[asyncio.Task[None]],
        events: Events,
        *,
        begin: Callable[[], None],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._keepers = keepers
        self._launcher = launcher
        self._errands = errands
        self._events = events
        self._begin = begin
        self._finish = finish
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_s = math.inf
        self._give_up = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._task is not None

    async def run(self, *, grace_s: float) -> None:
        """Returns when every process is reaped; answers in flight have `grace_s`.

        A second call with a smaller grace cuts the first short.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        if deadline_s < self._deadline_s:
            self._deadline_s = deadline_s
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = loop.call_at(deadline_s, self._hurry)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="end of the pool")
        await asyncio.shield(self._task)

    def _hurry(self) -> None:
        for keeper in self._keepers.values():
            keeper.stop("stopping")
            keeper.hurry()
        # SIGKILL is certain but for a process stuck in the kernel, which must not keep us from ending.
        patience_s = self._keepers.kill_grace_s + _UNKILLABLE_S
        self._deadline = asyncio.get_running_loop().call_later(patience_s, self._give_up.set)

    async def _run(self) -> None:
        self._begin()
        ends = asyncio.gather(
            self._launcher.stop(grace_s=self._keepers.kill_grace_s),
            *(keeper.ended() for keeper in self._keepers.values()),
            *self._errands,
        )
        given_up = asyncio.create_task(self._give_up.wait())
        await first({ends, given_up}, None)
        if not ends.done():
            self._events.emit("workers.unkillable", level="error")
        await drop(ends)
        await drop(given_up)
        await self._finish()
        if self._deadline is not None:
            self._deadline.cancel()

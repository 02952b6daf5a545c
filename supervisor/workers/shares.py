"""Tells each worker how much memory it may take, whenever that changes."""

import asyncio
import functools
from collections.abc import Mapping
from typing import Final

from supervisor.telemetry.events import Events
from supervisor.workers.control import NoAnswer, ask_to_keep_within
from supervisor.workers.keeper import Keeper, Life
from supervisor.workers.watch import drop, first

_TELL_S: Final = 5.0
_AGAIN_S: Final = 1.0


class Shares:
    """What was said to whom. A worker that does not answer is told again for as long as it lives."""

    def __init__(self, keepers: Mapping[str, Keeper], events: Events) -> None:
        self._keepers = keepers
        self._events = events
        self._wanted: dict[str, tuple[Life, int]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def tell(self, shares: Mapping[str, int]) -> None:
        """Bytes for each model. One that loads has them from its launch record, and hears more when ready."""
        for model_id in self._wanted.keys() - shares.keys():
            del self._wanted[model_id]
        for model_id, share_bytes in shares.items():
            keeper = self._keepers.get(model_id)
            life = None if keeper is None or keeper.state not in ("ready", "leased") else keeper.life
            if life is None or self._wanted.get(model_id) == (life, share_bytes):
                continue
            self._wanted[model_id] = life, share_bytes
            task = self._tasks.get(model_id)
            if task is None or task.done():
                task = asyncio.get_running_loop().create_task(
                    self._tell(model_id), name=f"share of {model_id}"
                )
                self._tasks[model_id] = task
                task.add_done_callback(functools.partial(self._told, model_id))

    def _told(self, model_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(model_id) is task:
            del self._tasks[model_id]

    async def _tell(self, model_id: str) -> None:
        said = None
        while (wanted := self._wanted.get(model_id)) is not None and wanted != said:
            life, share_bytes = wanted
            try:
                await ask_to_keep_within(life.upstream, share_bytes, timeout_s=_TELL_S)
            except NoAnswer as answer:
                if not life.process.exited.done():
                    self._events.emit(
                        "worker.share_not_told", level="warning", model=model_id, reason=str(answer)
                    )
                    await first({life.process.exited}, _AGAIN_S)
                if not life.process.exited.done():
                    continue
            said = wanted

    async def close(self) -> None:
        """Tell nobody any more."""
        for task in list(self._tasks.values()):
            await drop(task)

"""Tells each worker how much memory it may take, whenever that changes, and says who asked for more."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from shared.admin import LimitAsked
from shared.status import Memory
from supervisor.telemetry.events import Events
from supervisor.workers.actions import Share
from supervisor.workers.control import NoAnswer, ask_to_keep_within
from supervisor.workers.keeper import Keeper, Life
from supervisor.workers.watch import drop, first

_TELL_S: Final = 5.0
_AGAIN_S: Final = 1.0

Heard = Callable[[Keeper, int, Memory], None]
"""Called when a worker has said that it takes no more than so many bytes, and what it holds then."""


class Shares:
    """What was said to whom. A worker that does not answer is told again for as long as it lives."""

    def __init__(self, keepers: Mapping[str, Keeper], events: Events, heard: Heard) -> None:
        self._keepers = keepers
        self._events = events
        self._heard = heard
        self._wanted: dict[str, tuple[Life, LimitAsked]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asking: dict[str, float] = {}
        """The models that ask for more, and since when."""

    def tell(self, shares: Mapping[str, Share], pinned: Mapping[str, int]) -> None:
        """Tell the models their shares; `pinned` are those that stay, and their bytes. One that loads has its
        own from its launch record, and hears more when it is ready."""
        for model_id, share in shares.items():
            keeper = self._keepers.get(model_id)
            serving = keeper is not None and keeper.state in ("ready", "leased", "draining")
            life = keeper.life if keeper is not None and serving else None
            if life is None:
                continue
            beside = {name: size for name, size in pinned.items() if name != model_id}
            asked = LimitAsked(share.bytes, share.most_bytes, beside, share.back, share.cut)
            known = self._wanted.get(model_id)
            if known is not None and known == (life, asked):
                continue
            if share.back and not (known is not None and known[1].back):
                self._events.emit("worker.gives_back", model=model_id, share_bytes=share.bytes)
            if share.cut and not (known is not None and known[1].cut):
                self._events.emit("worker.cuts", level="warning", model=model_id, share_bytes=share.bytes)
            self._wanted[model_id] = life, asked
            task = self._tasks.get(model_id)
            if task is None or task.done():
                self._tasks[model_id] = asyncio.get_running_loop().create_task(
                    self._tell(model_id), name=f"share of {model_id}"
                )

    def note(self, model_id: str, memory: Memory, share_bytes: int, behind: tuple[str, ...]) -> None:
        """Say when a model begins to ask for more than its share, and when it has got it."""
        now = asyncio.get_running_loop().time()
        if memory.wanted_bytes and model_id not in self._asking:
            self._asking[model_id] = now
            self._events.emit(
                "worker.asks",
                model=model_id,
                wanted_bytes=memory.wanted_bytes,
                share_bytes=share_bytes,
                behind=", ".join(behind) or None,
            )
        elif not memory.wanted_bytes and (since := self._asking.pop(model_id, None)) is not None:
            self._events.emit(
                "worker.asked",
                model=model_id,
                share_bytes=share_bytes,
                reserved_bytes=memory.reserved_bytes,
                waited_s=round(now - since, 3),
            )

    async def _tell(self, model_id: str) -> None:
        said = None
        while (wanted := self._wanted[model_id]) != said:
            life, asked = wanted
            try:
                memory = await ask_to_keep_within(life.upstream, asked, timeout_s=_TELL_S)
            except NoAnswer as answer:
                if not life.process.exited.done():
                    self._events.emit(
                        "worker.share_not_told", level="warning", model=model_id, reason=str(answer)
                    )
                    await first({life.process.exited}, _AGAIN_S)
                if not life.process.exited.done():
                    continue
            else:
                keeper = self._keepers[model_id]
                if keeper.life is life:
                    self._heard(keeper, asked.bytes, memory)
            said = wanted

    async def close(self) -> None:
        """Tell nobody any more."""
        for task in self._tasks.values():
            await drop(task)

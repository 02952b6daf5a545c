"""Has a worker give back what it keeps of earlier prompts."""

from collections.abc import Callable
from typing import Final

from supervisor.telemetry.events import Events
from supervisor.workers.control import NoAnswer, ask_to_trim
from supervisor.workers.keeper import Keeper

_TRIM_S: Final = 30.0


async def trim(keeper: Keeper, events: Events, done: Callable[[], None]) -> None:
    """Ask the model's worker for it; `done` is called when it has, or can't, if it still is the same one."""
    life = keeper.life
    if life is None:
        return
    try:
        trimmed = await ask_to_trim(life.upstream, timeout_s=_TRIM_S)
    except NoAnswer as answer:
        events.emit("worker.not_trimmed", level="warning", model=keeper.id, reason=str(answer))
    else:
        events.emit("worker.trimmed", model=keeper.id, freed_bytes=trimmed.freed_bytes)
        if keeper.life is life:
            keeper.note_memory(trimmed.memory)
    if keeper.life is life:
        done()

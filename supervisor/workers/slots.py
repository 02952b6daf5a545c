"""A request's hold on a worker."""

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Protocol, Self

from shared.errors import PublicError
from supervisor.catalog.catalog import ModelEntry
from supervisor.workers import failures
from supervisor.workers.keeper import Keeper, Life
from supervisor.workers.upstream import Upstream

_EXIT_KNOWN_S: Final = 1.0


class Slot:
    """A place at a ready worker: it is neither unloaded nor evicted while this is held, which ends by `leave`
    or with an `async with`."""

    __slots__ = ("_keeper", "_life", "_number", "_source", "generation", "upstream")

    def __init__(self, source: "SlotSource", number: int, keeper: Keeper, life: Life) -> None:
        self._source = source
        self._number = number
        self._keeper = keeper
        self._life = life
        self.upstream: Upstream = life.upstream
        self.generation = life.generation

    def leave(self) -> None:
        """Give it back. Idempotent."""
        number, self._number = self._number, 0
        if number:
            self._source.leave(number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def failure(self) -> PublicError:
        """What to tell the client after an UpstreamError. Waits a moment until the exit is known."""
        life = self._life
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_KNOWN_S):
                await life.over.wait()
        exited = life.process.exited
        return failures.unavailable(
            self._keeper.id, self._keeper.state, exited.result() if exited.done() else None
        )


class SlotSource(Protocol):
    """Who gives slots: the pool."""

    async def enter(self, entry: ModelEntry, *, after: int) -> Slot:
        """Wait for a slot."""

    def leave(self, number: int) -> None:
        """The slot with this number is free."""


class SlotRequest:
    """`async with`: waits for a slot, and gives it back. Raises PublicError when there is none to be had."""

    __slots__ = ("_after", "_entry", "_slot", "_source")

    def __init__(self, source: SlotSource, entry: ModelEntry, after: int) -> None:
        self._source = source
        self._entry = entry
        self._after = after
        self._slot: Slot | None = None

    async def __aenter__(self) -> Slot:
        self._slot = await self._source.enter(self._entry, after=self._after)
        return self._slot

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot is not None:
            self._slot.leave()

"""Loads models that are to be there without a request."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol

from shared.errors import PublicError
from supervisor.catalog.catalog import ModelEntry
from supervisor.telemetry.events import Events
from supervisor.workers.books import Books


class Loader(Protocol):
    """Who loads a model by hand: the pool."""

    async def load(self, entry: ModelEntry) -> None:
        """Load the model. Raises PublicError when it can't be."""


class Preloads:
    """Nobody waits for these loads; `run` owns the task of each, under a name."""

    def __init__(
        self,
        books: Books,
        events: Events,
        loader: Loader,
        run: Callable[[Coroutine[None, None, None], str], None],
    ) -> None:
        self._books = books
        self._events = events
        self._loader = loader
        self._run = run
        self.left_out: set[str] = set()
        """Models that could not be loaded when they were to be."""

    def load(self, wanted: Iterable[ModelEntry]) -> bool:
        """Load those of `wanted` that fit beside each other; whether there are any."""
        free = self._books.budget_bytes
        loads = 0
        # Pinned ones can't be put off.
        for entry in sorted(wanted, key=lambda entry: not entry.settings.pin):
            self.left_out.discard(entry.id)
            cost = self._books.traits(entry).cost_bytes
            if cost > free and entry.problem is None:
                self._events.emit(
                    "preload.no_room",
                    level="warning",
                    model=entry.id,
                    needs_bytes=cost,
                    budget_bytes=self._books.budget_bytes,
                )
                self.left_out.add(entry.id)
                continue
            free -= cost
            loads += 1
            self._run(self._load(entry), f"preload of {entry.id}")
        return loads > 0

    async def _load(self, entry: ModelEntry) -> None:
        try:
            await self._loader.load(entry)
        except PublicError as error:
            self.left_out.add(entry.id)
            self._events.emit("preload.failed", level="warning", model=entry.id, reason=error.message)

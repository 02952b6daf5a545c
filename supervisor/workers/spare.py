"""When a spare worker is started, and what it reads ahead."""

import asyncio
from collections.abc import Mapping
from typing import Final

from supervisor.catalog.catalog import ModelEntry
from supervisor.workers.keepers import Keepers
from supervisor.workers.launcher import Launcher
from supervisor.workers.options import preview_of
from supervisor.workers.residents import Residents

SPARE_WAIT_S: Final = 2.0
"""A new spare waits for the first answers after a load, so long at most: its imports take a whole core."""


class Spare:
    """Chooses the moment; `launcher` has the process, `entries` what the next spawn of each model loads."""

    def __init__(
        self,
        launcher: Launcher,
        keepers: Keepers,
        residents: Residents,
        entries: Mapping[str, ModelEntry],
    ) -> None:
        self._launcher = launcher
        self._keepers = keepers
        self._residents = residents
        self._entries = entries
        self._due: asyncio.TimerHandle | None = None
        """Runs while a new spare waits for the first answers after a load."""

    def replenish(self, *, encouraged: bool = False) -> None:
        """A spare, but not while a model loads: they would fight for the processor."""
        if not self._keepers.loading:
            self._launcher.replenish(encouraged=encouraged)

    def loaded(self) -> None:
        """A load went well: time for a spare as soon as the first who waited for it are served."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(SPARE_WAIT_S, self._encourage)

    def served(self) -> None:
        """A request is over."""
        if self._due is not None and not self._residents.running():
            self._encourage()

    def look_ahead(self) -> None:
        """Let the spare know what it is likely to load."""
        expected = self._residents.expected()
        entry = None if expected is None else self._entries.get(expected)
        self._launcher.expect(None if entry is None else preview_of(entry))

    def close(self) -> None:
        """No more spares; the launcher ends the one that there is."""
        if self._due is not None:
            self._due.cancel()

    def _encourage(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self.replenish(encouraged=True)

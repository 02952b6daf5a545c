"""What changed settings mean for the models that are loaded or waited for."""

import asyncio
from collections.abc import Callable, Iterable

from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.settings import Settings
from supervisor.workers.actions import Action
from supervisor.workers.books import Books
from supervisor.workers.keepers import Keepers
from supervisor.workers.launcher import Launcher
from supervisor.workers.preloads import Preloads
from supervisor.workers.residency import Residency


class Reload:
    """Tells each part what it must know. `entries` are what the next spawn of each model loads; they and
    `keepers` are changed. `act` carries out actions of the policy, `allow` tells it its limits."""

    def __init__(
        self,
        *,
        policy: Residency,
        books: Books,
        keepers: Keepers,
        entries: dict[str, ModelEntry],
        catalog: Catalog,
        launcher: Launcher,
        preloads: Preloads,
        act: Callable[[Iterable[Action]], None],
        allow: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._books = books
        self._keepers = keepers
        self._entries = entries
        self._catalog = catalog
        self._launcher = launcher
        self._preloads = preloads
        self._act = act
        self._allow = allow

    def apply(self, before: Settings, settings: Settings) -> None:
        """`settings` take the place of `before`, and the catalog has the models that they make."""
        now = asyncio.get_running_loop().time()
        self._books.configure(settings.memory)
        self._keepers.configure(settings)
        found = {entry.id: entry for entry in self._catalog.entries()}
        for model_id, known in list(self._entries.items()):
            entry = found.get(model_id)
            if entry is None:
                self._act(self._policy.retire(model_id, now))
                self._forget(model_id, now)
            elif entry != known:
                self._entries[model_id] = entry
                self._books.forget_kill(model_id)
                self._act(self._policy.change(self._books.traits(entry), now))
        self._allow()
        if settings.memory.spare != before.memory.spare:
            self._launcher.keep_spare(settings.memory.spare)
        self._preloads.load(
            entry
            for entry in found.values()
            if entry.settings.preload
            # It is new that it shall be there, or perhaps now it can.
            and (not before.for_model(entry.id).preload or entry.id in self._preloads.left_out)
            and self._policy.phase(entry.id) == "absent"
        )

    def forget_gone(self) -> None:
        """The catalog was read anew: nothing is to be known any more of models that it has not and that don't
        run."""
        now = asyncio.get_running_loop().time()
        for model_id in self._entries.keys() - {entry.id for entry in self._catalog.entries()}:
            self._forget(model_id, now)

    def _forget(self, model_id: str, now: float) -> None:
        """The model is gone. What is known of it goes too, with a later reload if it still runs."""
        keeper = self._keepers.get(model_id)
        if keeper is not None and keeper.state == "failed":
            keeper.stop("removed")
            self._act(self._policy.forget_failure(model_id, now))
        if self._policy.model(model_id) is None and (keeper is None or keeper.state == "gone"):
            del self._entries[model_id]
            self._keepers.forget(model_id)
            self._books.forget_kill(model_id)

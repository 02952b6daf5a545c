"""Models as files: what each takes on the disk, removing one, and cleaning up after all of them."""

import os
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from shared.errors import PublicError
from supervisor.catalog.cached import CachedRepository
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.garbage import Garbage, find_garbage, remove_garbage
from supervisor.catalog.places import hub_cache
from supervisor.catalog.removal import Removal, Use, plan, take_away
from supervisor.home import Home


class RemovedView(msgspec.Struct, frozen=True):
    """`DELETE /api/models/{id}`: what was removed, or with `dry_run` would be."""

    id: str
    freed_bytes: int
    kept: str | None
    """What stays of it, in a sentence."""
    dry_run: bool


class GarbageView(msgspec.Struct, frozen=True):
    """One thing to clean up."""

    kind: str
    name: str
    size_bytes: int


class GarbageViews(msgspec.Struct, frozen=True):
    """`GET /api/garbage`: what a cleanup would free; `POST /api/gc`: what one has freed."""

    garbage: tuple[GarbageView, ...]
    freed_bytes: int
    dry_run: bool


class DiskView(msgspec.Struct, frozen=True):
    """What a model is on the disk."""

    kind: str
    """`own`, `hub` or `folder`: in our own folder, in the Hugging Face cache, or in one of yours."""
    path: str
    size_bytes: int
    """All its files."""
    freed_bytes: int
    """What removing it would give back: less than its size where others have the same files."""
    repo: str | None = None
    commit: str | None = None


class Storage:
    """The files behind the catalog, as things are now.

    `uses` tells who has which model loaded, `folders_in_use` from which folders, `running` which repositories
    are being downloaded. What takes time may run in a thread: nothing here asks anybody.
    """

    def __init__(
        self,
        home: Home,
        catalog: Catalog,
        *,
        uses: Mapping[str, Use] = MappingProxyType({}),
        folders_in_use: Collection[Path] = (),
        running: Collection[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._home = home
        self._catalog = catalog
        self._uses = uses
        self._folders_in_use = folders_in_use
        self._running = running
        self._cache = hub_cache(environ)

    def find(self, name: str) -> ModelEntry:
        """The model with this very id or alias. Raises PublicError, 404: what would only answer for the name,
        such as the fallback model, is not meant."""
        for entry in self._catalog.entries():
            if entry.id == name:
                return entry
        entry = self._catalog.resolve(name)
        if name in (*entry.settings.aliases, *entry.also):
            return entry
        raise PublicError(
            404,
            "model_not_found",
            f"There is no model of this name; requests for it are answered by '{entry.id}'.",
            param="model",
        )

    def plan(self, name: str) -> Removal:
        """What removing the model means. Raises PublicError."""
        return plan(
            self.find(name),
            self._catalog.entries(),
            models=self._home.models,
            cache=self._cache,
            use_of=self._uses.get,
        )

    def take_away(self, name: str) -> tuple[RemovedView, list[Path]]:
        """Plan and do in one go, so that nothing is loaded in between. The folders that are returned are for
        `delete`. Raises PublicError."""
        removal = self.plan(name)
        try:
            left = take_away(removal)
        except OSError as error:
            raise _undeletable(error) from error
        return RemovedView(removal.id, removal.freed_bytes, removal.kept, dry_run=False), left

    def delete(self, folders: list[Path]) -> None:
        """Delete what was taken away; takes its time. Raises PublicError."""
        try:
            for folder in folders:
                shutil.rmtree(folder)
        except OSError as error:
            raise _undeletable(error) from error

    def would_remove(self, name: str) -> RemovedView:
        """What `take_away` would do. Raises PublicError."""
        removal = self.plan(name)
        return RemovedView(removal.id, removal.freed_bytes, removal.kept, dry_run=True)

    def garbage(self) -> list[Garbage]:
        """What there is to clean up now."""
        kept = {entry.directory for entry in self._catalog.entries()} | set(self._folders_in_use)
        return find_garbage(
            self._home.models, self._cache, kept=kept, running=self._running, now_s=time.time()
        )

    def shown_garbage(self) -> GarbageViews:
        """What `clean` would do."""
        return _views(self.garbage(), dry_run=True)

    def clean(self) -> GarbageViews:
        """Clean up. Raises PublicError."""
        garbage = self.garbage()
        try:
            remove_garbage(garbage)
        except OSError as error:
            raise _undeletable(error) from error
        return _views(garbage, dry_run=False)

    def on_disk(self, entry: ModelEntry) -> DiskView | None:
        """What the model is on the disk; None when it has no files."""
        if not entry.directory.parts or not entry.directory.is_dir():
            return None
        repository = CachedRepository.of(entry.directory, self._cache)
        size = sum(file.stat().st_size for file in entry.directory.rglob("*") if file.is_file())
        try:
            freed = self.plan(entry.id).freed_bytes
        except PublicError:
            freed = 0
        if repository is not None:
            return DiskView("hub", str(entry.directory), size, freed, repository.name, entry.directory.name)
        kind = "own" if self._home.models in entry.directory.parents else "folder"
        return DiskView(kind, str(entry.directory), size, freed)


def _views(garbage: list[Garbage], *, dry_run: bool) -> GarbageViews:
    views = tuple(GarbageView(item.kind, item.name, item.size_bytes) for item in garbage)
    return GarbageViews(views, sum(item.size_bytes for item in garbage), dry_run)


def _undeletable(error: OSError) -> PublicError:
    return PublicError(
        409, "not_removed", f"Not everything could be removed: {error.strerror or error}. Try again."
    )

"""Removing a model from the disk: what is in our own folder or in the Hugging Face cache, and no other's.

`plan` decides and touches nothing; `take_away` does it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from shared.errors import PublicError
from shared.sizes import format_size
from supervisor.catalog.cached import CachedRepository, set_aside, size_of
from supervisor.catalog.catalog import ModelEntry

_IN_USE: Final = "model_in_use"


class Use(msgspec.Struct, frozen=True):
    """Who has a model loaded."""

    state: str
    pid: int | None
    in_flight: int
    queued: int

    def describe(self) -> str:
        requests = self.in_flight + self.queued
        busy = f", {requests} request{'s' if requests != 1 else ''}" if requests else ""
        return f"{self.state}{f', pid {self.pid}' if self.pid else ''}{busy}"


class Removal(msgspec.Struct, frozen=True):
    """What would be removed of a model. `paths` are whole files, links and folders, in this order."""

    id: str
    freed_bytes: int
    paths: tuple[Path, ...]
    kept: str | None = None
    """What stays of it, in a sentence."""


def plan(
    entry: ModelEntry,
    entries: Iterable[ModelEntry],
    *,
    models: Path,
    cache: Path,
    use_of: Callable[[str], Use | None],
) -> Removal:
    """What removing `entry` means.

    `entries` is the whole catalog, `models` our own folder, `cache` the Hugging Face cache, and `use_of`
    tells who has a model loaded. Raises PublicError, 409, when it is in use or not ours.
    """
    others = [other for other in entries if other.id != entry.id]
    _refuse_loaded(entry.id, use_of(entry.id))
    if not entry.directory.parts:
        raise PublicError(409, "nothing_to_remove", f"There are no files of '{entry.id}': {entry.problem}.")
    for other in others:
        if other.directory == entry.directory:
            _refuse_loaded(other.id, use_of(other.id))
            raise PublicError(
                409,
                "model_shared",
                f"'{entry.id}' and '{other.id}' have the same files; take one of them out of config.toml "
                "first.",
            )
    if models in (entry.directory.parent, entry.directory.parent.parent):
        for other in others:
            if entry.directory in other.directory.parents:
                raise PublicError(
                    409, "model_shared", f"The files of '{other.id}' are among those of '{entry.id}'."
                )
        return _own(entry, models)
    repository = CachedRepository.of(entry.directory, cache)
    if repository is None or entry.directory not in (repository.path, *repository.snapshots()):
        raise PublicError(
            409,
            "not_ours",
            f"The files of '{entry.id}' are in a folder of your own; remove that by hand, and its table in "
            "config.toml.",
        )
    if repository.is_downloading():
        raise PublicError(
            409,
            "download_running",
            f"{repository.name} is being downloaded; cancel that first: mlx-supervisor pull --cancel "
            f"{repository.name}",
        )
    return _cached(entry, others, repository, use_of)


def _refuse_loaded(model_id: str, use: Use | None) -> None:
    if use is not None and use.state != "failed":
        raise PublicError(
            409,
            _IN_USE,
            f"'{model_id}' is loaded ({use.describe()}); unload it first: mlx-supervisor unload {model_id}",
        )


def _own(entry: ModelEntry, models: Path) -> Removal:
    paths = [entry.directory]
    organisation = entry.directory.parent
    if (
        organisation != models
        and organisation.is_dir()
        and [path.name for path in organisation.iterdir()] == [entry.directory.name]
    ):
        paths = [organisation]
    return Removal(entry.id, size_of(entry.directory), tuple(paths))


def _cached(
    entry: ModelEntry,
    others: list[ModelEntry],
    repository: CachedRepository,
    use_of: Callable[[str], Use | None],
) -> Removal:
    """The whole repository, or of one that another model needs as well, this snapshot and its own blobs."""
    sharing = [other for other in others if _is_below(other.directory, repository.path)]
    if not sharing:
        locks = repository.lock_file().parent
        paths = (repository.path, *([locks] if locks.is_dir() else []))
        return Removal(entry.id, size_of(repository.path), paths)
    for other in sharing:
        if other.directory == repository.path:
            _refuse_loaded(other.id, use_of(other.id))
    staying = [folder for folder in repository.snapshots() if folder != entry.directory]
    blobs = repository.used_blobs([entry.directory]) - repository.used_blobs(staying)
    refs = [file for file, commit in repository.refs().items() if commit == entry.directory.name]
    freed = sum(size_of(blob) for blob in blobs)
    names = " and ".join(other.id for other in sharing)
    shared = sum(size_of(blob) for blob in repository.used_blobs([entry.directory])) - freed
    return Removal(
        entry.id,
        freed,
        (*refs, entry.directory, *sorted(blobs)),
        f"{format_size(shared)} stay: {names} has them as well" if shared else None,
    )


def take_away(removal: Removal) -> list[Path]:
    """Have what was planned found by nobody any more, in no time. Returns the folders that are left to
    delete. Raises OSError; done again it goes on."""
    return [left for path in removal.paths if (left := set_aside(path)) is not None]


def _is_below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents

"""What lies on the disk and is of no use any more: what broke off, and what no model refers to.

Models are never garbage, whether they are loaded or not, and neither is a blob that any of them has.
"""

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from shared.importing import PARTIAL_PREFIX
from supervisor.catalog.cached import REMOVED_PREFIX, CachedRepository, remove, size_of

Kind = Literal[
    "unfinished import", "unfinished removal", "unfinished download", "old revision", "unused blob"
]

FRESH_S: Final = 24 * 3600.0
"""What was written to since may still be wanted, by us or by another of the hub's tools."""
_PID: Final = re.compile(r"-(\d+)$")


class Garbage(msgspec.Struct, frozen=True):
    """One thing to clean up. `name` is the model or the repository that it belongs to."""

    kind: Kind
    name: str
    size_bytes: int
    paths: tuple[Path, ...]


def find_garbage(
    models: Path, cache: Path, *, kept: Collection[Path], running: Collection[str], now_s: float
) -> list[Garbage]:
    """All there is to clean up.

    `kept` are the folders of the catalog's models, and of whatever is loaded; `running` are repositories that
    are being downloaded; `now_s` is the wall clock, in seconds since 1970. Changes nothing.
    """
    found = list(_own(models, now_s))
    for repository in CachedRepository.all(cache):
        if repository.name in running or repository.is_downloading():
            continue
        found += _cached(repository, kept, now_s)
    found += [
        Garbage("unfinished removal", path.name, size_of(path), (path,))
        for path in _hidden(cache, REMOVED_PREFIX)
        if not _is_alive(path)
    ]
    return found


def remove_garbage(garbage: Collection[Garbage]) -> int:
    """Remove it; returns the bytes that came free. Raises OSError; what was removed by then is gone."""
    freed = 0
    for item in garbage:
        for path in item.paths:
            remove(path)
        freed += item.size_bytes
    return freed


def _own(models: Path, now_s: float) -> Iterator[Garbage]:
    organisations = [path for path in _entries(models) if path.is_dir() and not path.name.startswith(".")]
    kinds: tuple[tuple[str, Kind], ...] = (
        (PARTIAL_PREFIX, "unfinished import"),
        (REMOVED_PREFIX, "unfinished removal"),
    )
    for folder in (models, *organisations):
        for prefix, kind in kinds:
            for path in _hidden(folder, prefix):
                # Pids come again, so an old one counts for nothing.
                if not _is_alive(path) or not _is_fresh(path, now_s):
                    name = _PID.sub("", path.name.removeprefix(prefix))
                    yield Garbage(kind, name, size_of(path), (path,))


def _cached(repository: CachedRepository, kept: Collection[Path], now_s: float) -> Iterator[Garbage]:
    name = repository.name
    partial = repository.partial()
    if not any(_is_fresh(path, now_s) for path in partial):
        paths = [*partial, *([repository.record] if repository.record.exists() else [])]
        if paths:
            yield Garbage("unfinished download", name, sum(map(size_of, paths)), tuple(paths))
    elif repository.record.exists():
        return  # blobs that no snapshot has yet are a part of what is coming
    snapshots = repository.snapshots()
    commits = set(repository.refs().values())
    # Without any ref a snapshot was asked for by its commit: it is what there is.
    old = [folder for folder in snapshots if commits and folder.name not in commits and folder not in kept]
    used = repository.used_blobs(folder for folder in snapshots if folder not in old)
    for folder in old:
        own = sorted(
            blob for blob in repository.used_blobs([folder]) - used if blob.is_symlink() or blob.exists()
        )
        used |= set(own)
        yield Garbage("old revision", f"{name}@{folder.name[:8]}", sum(map(size_of, own)), (folder, *own))
    unused = [blob for blob in repository.blobs() if blob not in used and not _is_fresh(blob, now_s)]
    if unused:
        yield Garbage("unused blob", name, sum(map(size_of, unused)), tuple(unused))


def _hidden(folder: Path, prefix: str) -> list[Path]:
    return [path for path in _entries(folder) if path.name.startswith(prefix)]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_fresh(path: Path, now_s: float) -> bool:
    try:
        return now_s - path.lstat().st_mtime < FRESH_S
    except OSError:
        return False


def _is_alive(path: Path) -> bool:
    """Whether the process that the folder is named after still runs."""
    pid = _PID.search(path.name)
    if pid is None:
        return False
    try:
        os.kill(int(pid[1]), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True

"""A repository in the Hugging Face cache as it lies on the disk: which snapshots have which blobs.

Blobs are files, or links into the store that the cache's repositories share. What is in that store is never
ours to delete: its own tools know who uses it.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from shared.pulling import LOCK_NAME, PARTIAL_SUFFIX, RECORD_NAME

PREFIX: Final = "models--"


class CachedRepository:
    """The folder `models--ORG--NAME` of a cache. Nothing here raises for what is found there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, directory: Path, cache: Path) -> "CachedRepository | None":
        """The repository that `directory` is, or is a snapshot of; None when it is in no such place."""
        try:
            parts = directory.relative_to(cache).parts
        except ValueError:
            return None
        if not parts or not parts[0].startswith(PREFIX):
            return None
        return cls(cache / parts[0])

    @classmethod
    def all(cls, cache: Path) -> "list[CachedRepository]":
        """Every repository of a model in the cache, by name."""
        return [cls(folder) for folder in _folders(cache) if folder.name.startswith(PREFIX)]

    @property
    def name(self) -> str:
        """`ORG/NAME`."""
        return self.path.name.removeprefix(PREFIX).replace("--", "/", 1)

    def snapshots(self) -> list[Path]:
        return _folders(self.path / "snapshots")

    def refs(self) -> dict[Path, str]:
        """The files under `refs`, and the commits in them."""
        found = {}
        for file in _files(self.path / "refs"):
            try:
                found[file] = file.read_text("ascii").strip()
            except (OSError, UnicodeDecodeError):
                continue
        return found

    def blobs(self) -> list[Path]:
        """Whole blobs."""
        return [path for path in _entries(self.path / "blobs") if not path.name.endswith(PARTIAL_SUFFIX)]

    def partial(self) -> list[Path]:
        """Beginnings of blobs."""
        return [path for path in _entries(self.path / "blobs") if path.name.endswith(PARTIAL_SUFFIX)]

    @property
    def record(self) -> Path:
        """Where the record of an unfinished download of ours is."""
        return self.path / RECORD_NAME

    def used_blobs(self, snapshots: Iterable[Path]) -> set[Path]:
        """The blobs that files of these snapshots are links to."""
        used = set()
        for snapshot in snapshots:
            for file in _files(snapshot):
                if file.is_symlink():
                    # Only the first step: a blob may itself be a link into the shared store.
                    used.add(Path(os.path.normpath(file.parent / os.readlink(file))))
        return used

    def lock_file(self) -> Path:
        return self.path.parent / ".locks" / self.path.name / LOCK_NAME

    def is_downloading(self) -> bool:
        """Whether a program of ours downloads into it now."""
        try:
            descriptor = os.open(self.lock_file(), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)


def size_of(path: Path) -> int:
    """Bytes that removing this file, link or folder gives back; a link's target stays where it is."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        # With another name elsewhere its bytes stay.
        return 0 if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1 else status.st_size
    return sum(size_of(entry) for entry in _entries(path))


def set_aside(path: Path) -> Path | None:
    """Take a file, a link or a folder away at once. Raises OSError.

    A folder only gets another name, which is returned: removing what is in it takes its time, and meanwhile
    nobody shall find half of it under its own name.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return None
    leaving = path.with_name(f"{REMOVED_PREFIX}{path.name}-{os.getpid()}")
    path.rename(leaving)
    return leaving


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it. Raises OSError."""
    if (leaving := set_aside(path)) is not None:
        shutil.rmtree(leaving)


REMOVED_PREFIX: Final = ".removing-"
"""Folders that begin like this are what a removal that broke off has left."""


def _folders(parent: Path) -> list[Path]:
    return [path for path in _entries(parent) if path.is_dir() and not path.name.startswith(".")]


def _entries(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir())
    except OSError:
        return []


def _files(parent: Path) -> Iterator[Path]:
    """Files and links below `parent`, at any depth."""
    for path in _entries(parent):
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path

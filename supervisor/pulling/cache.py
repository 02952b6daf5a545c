"""One repository's folder in the Hugging Face cache, in the layout that its own tools read.

`blobs/` holds contents by checksum, `snapshots/COMMIT/` names them by links, `refs/` says which commit a
branch is at. A snapshot is made last, when every blob is whole: what the tools find there is never half a
model, and the snapshot that was there before stays usable until then.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared.pulling import LOCK_NAME, PARTIAL_SUFFIX, RECORD_NAME, PullFile, PullRecord, repo_folder

_LAST: Final = "config.json"
"""What makes a folder a model is linked last."""


class RepoFolder:
    """The folder of `repo` in the cache at `cache`. Methods raise OSError."""

    def __init__(self, cache: Path, repo: str) -> None:
        self._cache = cache
        self.path = cache / repo_folder(repo)
        self._lock_file = cache / ".locks" / repo_folder(repo) / LOCK_NAME

    def prepare(self) -> None:
        """Make what is missing of it."""
        for name in ("blobs", "refs", "snapshots"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, wait: Callable[[], None]) -> Iterator[None]:
        """Hold the folder against other downloads of ours. While another has it, `wait` is called again and
        again; it pauses."""
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    wait()
                else:
                    break
            yield
        finally:
            os.close(descriptor)

    def blob(self, name: str) -> Path:
        return self.path / "blobs" / name

    def partial(self, name: str) -> Path:
        """The beginning of a blob."""
        return self.path / "blobs" / f"{name}{PARTIAL_SUFFIX}"

    def has(self, file: PullFile) -> bool:
        """Whether the whole file is there."""
        try:
            return self.blob(file.blob).stat().st_size == file.size_bytes
        except OSError:
            return False

    def there_bytes(self, files: Sequence[PullFile]) -> int:
        """How much of `files`, each with a blob of its own, is there, whole or begun."""
        there = 0
        for file in files:
            if self.has(file):
                there += file.size_bytes
                continue
            with contextlib.suppress(OSError):
                there += min(self.partial(file.blob).stat().st_size, file.size_bytes)
        return there

    def free_bytes(self) -> int:
        """What the disk has room for."""
        return shutil.disk_usage(self.path).free

    def record(self, record: PullRecord) -> None:
        """Write down what is coming, for whoever finds the folder half full."""
        _replace(self.path / RECORD_NAME, msgspec.json.encode(record))

    def finish(self, commit: str, files: Sequence[PullFile], ref: str | None) -> Path:
        """Give the blobs their names, point `ref` at them, and forget the record. Returns the snapshot."""
        snapshot = self.path / "snapshots" / commit
        for file in sorted(files, key=lambda file: file.path == _LAST):
            link = snapshot / file.path
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(self.blob(file.blob), link.parent)
            if not (link.is_symlink() and os.readlink(link) == target):
                passing = link.with_name(f".{link.name}.{os.getpid()}")
                passing.symlink_to(target)
                os.replace(passing, link)
        if ref is not None:
            branch = self.path / "refs" / ref
            branch.parent.mkdir(parents=True, exist_ok=True)
            _replace(branch, commit.encode())
        (self.path / RECORD_NAME).unlink(missing_ok=True)
        return snapshot


def _replace(path: Path, content: bytes) -> None:
    passing = path.with_name(f".{path.name}.{os.getpid()}")
    passing.write_bytes(content)
    os.replace(passing, path)

"""Prompt state on disk: one folder for each model identity, one budget for all.

It holds what people wrote to the model, so folders and files are the owner's alone. A file that is damaged,
of another model or of another format is removed and never served. Whatever goes wrong here costs time, never
an answer.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.engine import state_file
from worker.engine.host_state import HostState, StateError
from worker.engine.prompt_cache import SESSION_S, SHORTEST, Tokens, common_prefix

log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 2**30
"""What may wait to be written; it takes memory until it is."""
_STALE_S: Final = 600.0
"""A file that is being written and was not touched for so long never will be whole."""
_SHARE_OF_FREE: Final = 0.25
_MOST_BYTES: Final = 16 * 2**30


def default_budget(root: Path) -> int:
    """Bytes for all models' state: a share of what is free on that disk, bounded."""
    return min(_MOST_BYTES, int(_SHARE_OF_FREE * shutil.disk_usage(root).free))


@dataclass(frozen=True)
class Saved:
    """One file's state, without its numbers."""

    path: Path
    tokens: Tokens
    adapter: str
    session: str | None
    trimmable: bool
    nbytes: int

    def usable(self, prompt: Tokens) -> int:
        """As Entry.usable."""
        common = common_prefix(self.tokens, prompt[:-1])
        return common if self.trimmable or common == len(self.tokens) else 0


@dataclass(frozen=True)
class Unsaved:
    """State to be written."""

    tokens: Tokens
    adapter: str
    session: str | None
    trimmable: bool
    host: HostState


@dataclass
class SavedCounts:
    """What happened since the start. `dropped` was not written for want of room or because it can't be
    written down, `failed` was damaged or the disk refused."""

    spills: int = 0
    restores: int = 0
    restore_s: float = 0.0
    dropped: int = 0
    failed: int = 0


class SavedState:
    """The states of one model, and the budget of all. Its methods may be called from any thread."""

    def __init__(self, root: Path, identity: str, *, budget_bytes: int) -> None:
        self.folder = root / identity
        self.budget_bytes = budget_bytes
        self.counts = SavedCounts()
        self._root = root
        self._identity = identity
        self._lock = threading.Lock()
        self._index: dict[str, Saved] = {}
        self._backlog = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="saved-state")

    @property
    def entries(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(saved.nbytes for saved in self._index.values())

    @property
    def backlogged(self) -> bool:
        """Whether the disk is so far behind that no more should be given to it now."""
        return self._backlog > _BACKLOG_BYTES

    def open(self) -> None:
        """Find what is there. Raises OSError when the folder can't be used."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for path in list(self.folder.iterdir()):
            if path.name.endswith(state_file.TEMPORARY):
                with contextlib.suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _STALE_S:
                        path.unlink()
            elif path.suffix == state_file.SUFFIX:
                self._admit(path)

    def _admit(self, path: Path) -> None:
        try:
            header, tokens = state_file.read_head(path)
            if header.identity != self._identity or path.name != _name(tokens, header.adapter):
                raise StateError("it is another model's")
            nbytes = path.stat().st_size
        except (OSError, StateError) as error:
            self._remove_bad(path, error)
            return
        saved = Saved(path, tokens, header.adapter, header.session, header.trimmable, nbytes)
        with self._lock:
            self._index[path.name] = saved

    def find(self, prompt: Tokens, *, adapter: str, session: str | None, longer_than: int) -> Saved | None:
        """The state that has the most of `prompt`, if that is more than `longer_than` tokens."""
        best, length = None, max(longer_than, SHORTEST - 1)
        with self._lock:
            known = [saved for saved in self._index.values() if saved.adapter == adapter]
        for saved in known:
            usable = saved.usable(prompt)
            if usable > length or (usable == length and best is not None and saved.session == session):
                best, length = saved, usable
        return best

    def read(self, saved: Saved) -> HostState | None:
        """The state itself; None when it turns out to be gone or damaged, and then it is forgotten."""
        started = time.monotonic()
        try:
            _, tokens, host = state_file.read(saved.path, lambda header: header.identity == self._identity)
            if len(tokens) != len(saved.tokens) or common_prefix(tokens, saved.tokens) != len(tokens):
                raise StateError("its tokens have changed")
        except FileNotFoundError:
            # Another worker made room for its own.
            self._forget(saved.path.name)
            return None
        except (OSError, StateError) as error:
            self._remove_bad(saved.path, error)
            return None
        self._touch(saved.path, saved.session)
        self.counts.restores += 1
        self.counts.restore_s += time.monotonic() - started
        return host

    def reject(self, saved: Saved, error: Exception) -> None:
        """It could be read and yet made no state."""
        self.counts.restores -= 1
        self._remove_bad(saved.path, error)

    def has(self, tokens: Tokens, adapter: str) -> bool:
        return _name(tokens, adapter) in self._index

    def write(self, unsaved: Unsaved) -> None:
        """Have it written, soon and on another thread."""
        size = unsaved.host.nbytes
        if size > self.budget_bytes:
            self.counts.dropped += 1
            return
        with self._lock:
            self._backlog += size
        self._writer.submit(self._write, unsaved)

    def flush(self) -> Future[None]:
        """Done when all that was given to `write` so far is written."""
        return self._writer.submit(lambda: None)

    def close(self) -> None:
        self._writer.shutdown(wait=False)

    def _write(self, unsaved: Unsaved) -> None:
        tokens, adapter, session = unsaved.tokens, unsaved.adapter, unsaved.session
        path = self.folder / _name(tokens, adapter)
        try:
            header = state_file.header_of(
                tokens,
                unsaved.host,
                identity=self._identity,
                adapter=adapter,
                session=session,
                trimmable=unsaved.trimmable,
            )
            self._make_room(unsaved.host.nbytes)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            nbytes = state_file.write(path, header, tokens, unsaved.host)
            self._touch(path, session)
        except OSError as error:
            self.counts.failed += 1
            log.warning("prompt state could not be saved: %s", error.strerror or error)
        else:
            self.counts.spills += 1
            with self._lock:
                self._index[path.name] = Saved(path, tokens, adapter, session, unsaved.trimmable, nbytes)
            if unsaved.trimmable:
                self._remove_prefixes(tokens, adapter)
        finally:
            with self._lock:
                self._backlog -= unsaved.host.nbytes

    def _remove_prefixes(self, tokens: Tokens, adapter: str) -> None:
        """A state that can be cut back has all that shorter ones have."""
        with self._lock:
            known = list(self._index.values())
        for saved in known:
            length = len(saved.tokens)
            shorter = saved.adapter == adapter and length < len(tokens)
            if shorter and common_prefix(saved.tokens, tokens) == length:
                self._remove(saved.path)

    def _make_room(self, nbytes: int) -> None:
        """Remove what was used longest ago, of whatever model, until `nbytes` more fit."""
        found = []
        total = nbytes
        for folder in self._root.iterdir():
            if folder.is_symlink() or not folder.is_dir():
                continue
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    total += status.st_size
                    if path.suffix == state_file.SUFFIX:
                        found.append((status.st_mtime, status.st_size, path))
        for _, size, path in sorted(found):
            if total <= self.budget_bytes:
                break
            self._remove(path)
            total -= size
            if path.parent != self.folder:
                # Not the last one: then it says that it is not empty.
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _touch(self, path: Path, session: str | None) -> None:
        now = time.time()
        with contextlib.suppress(OSError):
            os.utime(path, (now, now + (SESSION_S if session is not None else 0)))

    def _remove_bad(self, path: Path, error: Exception) -> None:
        self.counts.failed += 1
        log.warning("removed the saved prompt state %s: %s", path.name, error)
        self._remove(path)

    def _remove(self, path: Path) -> None:
        if path.parent == self.folder:
            self._forget(path.name)
        with contextlib.suppress(OSError):
            path.unlink()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._index.pop(name, None)


def _name(tokens: Tokens, adapter: str) -> str:
    digest = hashlib.sha256(adapter.encode() + b"\0" + tokens.astype("<i4").tobytes())
    return digest.hexdigest()[:32] + state_file.SUFFIX

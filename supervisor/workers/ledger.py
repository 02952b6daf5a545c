"""`run/workers.json`: which processes are ours, so that the next supervisor finds what a killed one left.

Workers leave by themselves when their supervisor is gone. This is for those that can't.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec
import psutil

from supervisor.workers import family

_START_TOLERANCE_S: Final = 1.0
_LEAVE_S: Final = 2.5
"""A worker has 2 s after the end of its supervisor to write down what it can."""


class Entry(msgspec.Struct, frozen=True):
    """One process. A pid alone means nothing: numbers are used again."""

    pid: int
    created_s: float
    command: tuple[str, ...]


class Ledger:
    """Keeps the file in step with the processes. What can't be written is lost, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[int, Entry] = {}

    def add(self, entry: Entry) -> None:
        self._entries[entry.pid] = entry
        self._write()

    def remove(self, pid: int) -> None:
        if self._entries.pop(pid, None) is not None:
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            if not self._entries:
                self._path.unlink(missing_ok=True)
                return
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(list(self._entries.values())))
            os.replace(fresh, self._path)


def living(path: Path) -> list[int]:
    """The pids of the processes that `path` names and that still are the same."""
    return [process.pid for entry in _read(path) if (process := _same(entry)) is not None]


def _read(path: Path) -> list[Entry]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Entry])
    except (OSError, msgspec.MsgspecError):
        return []


def sweep(path: Path) -> int:
    """End the processes that `path` names and that still are the same; returns how many were killed.

    Blocks for up to some seconds: call it in a thread. Call it under the lock of the state folder.
    """
    orphans = [process for entry in _read(path) if (process := _same(entry)) is not None]
    relatives = [relative for orphan in orphans for relative in family.descendants(orphan.pid)]
    killed = family.end([*orphans, *relatives], leave_s=_LEAVE_S)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return killed


def _same(entry: Entry) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(entry.pid)
        started = abs(process.create_time() - entry.created_s) <= _START_TOLERANCE_S
        # The first word may differ: macOS' Python starts itself again from inside its app bundle.
        if started and tuple(process.cmdline()[1:]) == entry.command[1:]:
            return process
    return None

"""A log file: only its owner reads it, it begins anew when it is full, and it never stops the service."""

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["USUAL_LIMITS", "AppendFile", "LogLimits", "older"]

_REOPEN_S: Final = 5.0
"""How often a file that could not be opened is tried again, at most."""


class LogLimits(msgspec.Struct, frozen=True):
    """When a log begins anew, and how many full ones are kept beside it: `NAME.1` is the newest."""

    size_bytes: int = 16 * 2**20
    keep: int = 5


USUAL_LIMITS: Final = LogLimits()


def older(path: Path, number: int) -> Path:
    """Where the log `path` is kept that was full `number` times ago."""
    return path.with_name(f"{path.name}.{number}")


class AppendFile:
    """Appends whole lines to `path`; what can't be written is for the caller to count.

    Several of these may write to one path: a worker that leaves and the next one of its model. A line is
    written by one call, and who finds that another has begun a new file goes on in that.
    """

    def __init__(self, path: Path, limits: LogLimits = USUAL_LIMITS) -> None:
        self._path = path
        self._limits = limits
        self._descriptor: int | None = None
        self._size = 0
        self.next_try_s = 0.0
        """Monotonic; when a file that could not be opened is tried again."""
        self._torn = False
        self._closed = False
        self._open()

    def append(self, data: bytes) -> int:
        """Write `data`, which ends with a line end; returns how many bytes of it are there. Never raises."""
        if self._descriptor is not None and self._size + len(data) > self._limits.size_bytes:
            self._begin_anew()
        if self._descriptor is None and not self._closed and time.monotonic() >= self.next_try_s:
            self._open()
        if self._descriptor is None:
            return 0
        # After half a line, the next begins on a line of its own.
        before = b"\n" if self._torn else b""
        try:
            written = os.write(self._descriptor, before + data)
        except OSError:
            return 0
        self._size += written
        # A disk that fills up takes the beginning and says so by the count.
        self._torn = written < len(before) + len(data)
        return max(0, written - len(before))

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.next_try_s = time.monotonic() + _REOPEN_S
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError:
            self._descriptor = None
        else:
            self._size = os.fstat(self._descriptor).st_size

    def _begin_anew(self) -> None:
        """Put the full file aside and open a new one. What can't be put aside is written on."""
        assert self._descriptor is not None
        if self._size == 0:
            return  # one line longer than the limit
        with contextlib.suppress(OSError):
            ours = os.fstat(self._descriptor)
            there = os.lstat(self._path)
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                self._put_aside()
            self._let_go()
            self._open()

    def _put_aside(self) -> None:
        if self._limits.keep == 0:
            self._path.unlink()
            return
        for number in range(self._limits.keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                older(self._path, number).replace(older(self._path, number + 1))
        self._path.replace(older(self._path, 1))

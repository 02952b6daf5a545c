"""The end of log files, and what is written to them next."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 65536
_POLL_S: Final = 0.25
"""Neither system has an event for "a file grew" that works with nothing but the standard library."""


class Tail:
    """Several logs side by side. Lines come with the file's name without its suffix, and no line end."""

    def __init__(self, paths: Sequence[Path], *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._paths = paths
        self._sleep = sleep
        self._positions: dict[Path, tuple[int, int]] = {}
        self._begun: dict[Path, bytes] = {}

    def last(self, count: int) -> Iterator[tuple[str, str]]:
        """The last `count` lines of each file that is there."""
        for path in self._paths:
            with contextlib.suppress(OSError), path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                self._positions[path] = (os.fstat(file.fileno()).st_ino, end)
                for line in _last_lines(file, end, count):
                    yield path.stem, _text(line)

    def follow(self) -> Iterator[tuple[str, str]]:
        """Lines that are written after `last`, without an end; also those of a file that takes its place."""
        while True:
            for path in self._paths:
                for line in self._new_lines(path):
                    yield path.stem, _text(line)
            self._sleep(_POLL_S)

    def _new_lines(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, position = self._positions.get(path, (status.st_ino, 0))
                if status.st_ino != inode or status.st_size < position:
                    position, self._begun[path] = 0, b""  # rotated, or cut
                file.seek(position)
                content = file.read()
        except OSError:
            # What comes next under this name is another file, even if it gets the same number.
            self._positions[path] = (-1, 0)
            return []
        self._positions[path] = (status.st_ino, position + len(content))
        *lines, self._begun[path] = (self._begun.get(path, b"") + content).split(b"\n")
        return lines


def _last_lines(file: BufferedReader, end: int, count: int) -> list[bytes]:
    content, start = b"", end
    while start > 0 and content.count(b"\n") <= count:
        start = max(0, start - _BLOCK_BYTES)
        file.seek(start)
        content = file.read(end - start)
    return content.splitlines()[-count:] if count else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")

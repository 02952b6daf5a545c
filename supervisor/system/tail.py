"""The end of log files, and what is written to them next."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Final

from supervisor.telemetry.appendfile import older

_BLOCK_BYTES: Final = 65536
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
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
        """The last `count` lines of each file that is there, of its full predecessor too if it has fewer."""
        for path in self._paths:
            lines: list[bytes] = []
            with contextlib.suppress(OSError), path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                self._positions[path] = (os.fstat(file.fileno()).st_ino, end)
                lines = _last_lines(file, end, count)
            if len(lines) < count:
                with contextlib.suppress(OSError), older(path, 1).open("rb") as file:
                    lines = _last_lines(file, file.seek(0, os.SEEK_END), count - len(lines)) + lines
            for line in lines:
                yield path.stem, _text(line)

    def since(self, moment: str) -> Iterator[tuple[str, str]]:
        """Lines from `moment` on, a timestamp as the logs write it; also of full logs kept beside each file.

        A line without a timestamp belongs to the line before.
        """
        for path in self._paths:
            for source in (*reversed(_kept(path)), path):
                with contextlib.suppress(OSError), source.open("rb") as file:
                    if source == path:
                        end = file.seek(0, os.SEEK_END)
                        self._positions[path] = (os.fstat(file.fileno()).st_ino, end)
                        file.seek(0)
                    late = False
                    for line in file:
                        text = _text(line.rstrip(b"\n"))
                        if (found := _TIMESTAMP.search(text, 0, 40)) is not None:
                            late = found[0] >= moment[: len(found[0])]
                        if late:
                            yield path.stem, text

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


def _kept(path: Path) -> list[Path]:
    """The full logs beside `path`, the newest first."""
    kept: list[Path] = []
    while (next_one := older(path, len(kept) + 1)).exists():
        kept.append(next_one)
    return kept


def _last_lines(file: BufferedReader, end: int, count: int) -> list[bytes]:
    content, start = b"", end
    while start > 0 and content.count(b"\n") <= count:
        start = max(0, start - _BLOCK_BYTES)
        file.seek(start)
        content = file.read(end - start)
    return content.splitlines()[-count:] if count else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")

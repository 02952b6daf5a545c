"""What workers write: read off their pipes line by line, kept per model, never parsed for meaning."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from supervisor.telemetry.appendfile import AppendFile
from supervisor.telemetry.lines import escaped, timestamp

READ_BYTES: Final = 64 * 1024
LONGEST_LINE_BYTES: Final = 16 * 1024
"""What is longer comes in pieces."""
TAIL_LINES: Final = 20
_LONGEST_KEPT: Final = 500
"""Characters of a line in the tail, which ends up in error bodies."""
_HELD_LINES: Final = 200
"""Lines that a spare writes before it has a model, and thus a log file."""
_DRAIN_BYTES: Final = 1024 * 1024


class LineReader:
    """Hands over the lines that come through the pipe `descriptor`, which it owns, as they come."""

    def __init__(self, descriptor: int, on_lines: Callable[[list[bytes]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._on_lines = on_lines
        self._rest = b""
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def at_end(self) -> bool:
        """Whether nobody holds the other end any more."""
        return self._descriptor is None

    def drain(self) -> None:
        """Take what is in the pipe now, without waiting. A flood is cut off."""
        taken = 0
        while taken < _DRAIN_BYTES and (size := self._read()):
            taken += size

    def close(self) -> None:
        """Hand over a last line that has no end, and let go of the pipe. Idempotent."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        if self._rest:
            rest, self._rest = self._rest, b""
            self._on_lines([rest])

    def _read(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.close()
            return 0
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE_BYTES:
            lines.append(self._rest[:LONGEST_LINE_BYTES])
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        if lines:
            self._on_lines(lines)
        return len(data)


class Output:
    """A worker's stdout and stderr: appended to its model's log, the last lines of stderr kept.

    A disk that is full or a folder that can't be written loses lines, which are counted, and nothing else.
    """

    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._held: deque[bytes] = deque(maxlen=_HELD_LINES)
        self._log: AppendFile | None = None
        self._mark = b""
        self._on_lost: Callable[[int], None] | None = None
        self.dropped = 0
        """Lines that could not be written."""

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def attach(self, log: AppendFile, pid: int, on_lost: Callable[[int], None] | None = None) -> None:
        """Write to `log`, which becomes ours, from now on, and what was held until now.

        `on_lost` is told how many lines were lost, each time.
        """
        self._on_lost = on_lost
        self._log = log
        self._mark = f" {pid} ".encode()
        held = list(self._held)
        self._held.clear()
        self._write(held)

    def stdout(self, lines: list[bytes]) -> None:
        self._take(lines)

    def stderr(self, lines: list[bytes]) -> None:
        self._tail.extend(text[:_LONGEST_KEPT] for line in lines[-TAIL_LINES:] if (text := _text(line)))
        self._take(lines)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _take(self, lines: list[bytes]) -> None:
        if self._log is None:
            self._held.extend(lines)
        else:
            self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        if not lines or self._log is None:
            return
        head = timestamp(time.time()).encode() + self._mark
        data = b"".join(head + _text(line).encode() + b"\n" for line in lines)
        if lost := data.count(b"\n", self._log.append(data)):
            self.dropped += lost
            if self._on_lost is not None:
                self._on_lost(lost)


def _text(line: bytes) -> str:
    # A progress bar rewrites its line: what it said last is what it says.
    last = line.rstrip().rpartition(b"\r")[2]
    return escaped(last.decode("utf-8", "replace").replace("\t", "    "))

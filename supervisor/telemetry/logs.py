"""Writes events to `supervisor.log` and, in short, to a terminal. Never in the way of the service.

A disk that is full or a folder that can't be written loses lines, which are counted; a terminal that
doesn't scroll (Ctrl-S) loses lines too. Neither ever stops the event loop with an error.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

from supervisor.telemetry.appendfile import USUAL_LIMITS, AppendFile, LogLimits
from supervisor.telemetry.events import FINISHED, Event, Events
from supervisor.telemetry.lines import json_line, log_line, terminal_line

_CALLS: Final = 8
"""Innermost calls of a traceback that are kept."""
_TERMINAL_LINES: Final = 1000
"""Lines that wait for a terminal that doesn't take them."""
_GATHER_S: Final = 0.2
_GATHER_BYTES: Final = 16 * 1024
"""So long, and so much of them, the lines of finished requests wait for each other."""


class LogFile:
    """Appends events to a file as lines; what can't be written is dropped and counted.

    Every request makes a line, so those are gathered and written together, within `_GATHER_S`. Any other
    line is written at once, with what was gathered before it.
    """

    def __init__(
        self,
        path: Path,
        limits: LogLimits = USUAL_LIMITS,
        *,
        line: Callable[[Event], bytes] = log_line,
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        """`on_lost` is told how many lines were lost, each time."""
        self._file = AppendFile(path, limits)
        self._line = line
        self._on_lost = on_lost
        self._gather_bytes = min(_GATHER_BYTES, limits.size_bytes // 2)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._timed = False
        """A timer will flush; one that comes late finds nothing to do."""
        self._untold = 0
        self.dropped = 0
        """Lines that were lost since the start."""

    def write(self, event: Event) -> None:
        """Append the event. A subscriber of `Events`."""
        line = self._line(event)
        self._gathered.append(line)
        self._gathered_bytes += len(line)
        gathers = event.kind == FINISHED and self._gathered_bytes < self._gather_bytes
        if not (gathers and (self._timed or self._set_timer())):
            self.flush()

    def flush(self) -> None:
        """Write what was gathered. Never raises."""
        lines, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not lines:
            return
        if self._untold:
            missing = Event(time.time(), "log.dropped", "warning", {"lines": self._untold})
            lines.insert(0, self._line(missing))
        left = self._file.append(b"".join(lines))
        for number, line in enumerate(lines):
            left -= len(line)
            if left < 0:
                self._lose(lines, number)
                return
        self._untold = 0

    def _lose(self, lines: list[bytes], first: int) -> None:
        """Those from `first` on are not there, or not whole. The one that tells of others is none itself."""
        lost = len(lines) - first
        if self._untold:
            if first == 0:
                lost -= 1
            else:
                self._untold = 0
        self._untold += lost
        self.dropped += lost
        if self._on_lost is not None:
            self._on_lost(lost)

    def _set_timer(self) -> bool:
        """Have somebody flush; without an event loop nobody does."""
        try:
            asyncio.get_running_loop().call_later(_GATHER_S, self._flush_timed)
        except RuntimeError:
            return False
        self._timed = True
        return True

    def _flush_timed(self) -> None:
        self._timed = False
        self.flush()

    def close(self) -> None:
        self.flush()
        self._file.close()


class Terminal:
    """Short lines for a person. A thread of its own writes them, for a terminal can be held up."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._lines: queue.Queue[str | None] = queue.Queue(_TERMINAL_LINES)
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def write(self, event: Event) -> None:
        """Show the event if a person would want to see it. A subscriber of `Events`."""
        if (line := terminal_line(event, colour=self._colour)) is not None:
            self.say(line)

    def say(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return  # whoever holds up the terminal does not read along; the log file has it

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Write what waits, for as long as the terminal takes it."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # the terminal is gone


class LibraryLogs(logging.Handler):
    """Makes events of what is logged at warning and above: by asyncio, the HTTP server, any library.

    Only the first line of a message and an exception's type and place are kept. The rest, and the
    exception's own text, may quote what a client sent.
    """

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().partition("\n")[0]
        error, place = None, None
        if record.exc_info and record.exc_info[1] is not None:
            error = type(record.exc_info[1]).__qualname__
            place = _place(record.exc_info[2])
        self._events.emit(
            "library.error" if record.levelno >= logging.ERROR else "library.warning",
            level="error" if record.levelno >= logging.ERROR else "warning",
            logger=record.name,
            message=message,
            error=error,
            place=place,
        )


def _place(trace: TracebackType | None) -> str:
    """The calls that led to an exception, innermost last: `relay.py:120:forward > upstream.py:88:read`."""
    calls: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        calls.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}:{code.co_name}")
        trace = trace.tb_next
    return " > ".join(calls[-_CALLS:])


class Logs:
    """Everything that listens to `events` for people: the log file, the terminal, the libraries' bridge.

    `terminal` is where short lines go, as long as it is one; None or a pipe gets none.
    """

    def __init__(
        self,
        path: Path,
        events: Events,
        *,
        terminal: TextIO | None = None,
        limits: LogLimits = USUAL_LIMITS,
        json: bool = False,
    ) -> None:
        self.file = LogFile(
            path,
            limits,
            line=json_line if json else log_line,
            on_lost=lambda lines: events.lose("", lines),
        )
        self.terminal = (
            Terminal(terminal, colour=wants_colour(terminal, os.environ))
            if terminal is not None and terminal.isatty()
            else None
        )
        self._leave = [events.subscribe(self.file.write)]
        if self.terminal is not None:
            self._leave.append(events.subscribe(self.terminal.write))
        self._libraries = LibraryLogs(events)
        logging.getLogger().addHandler(self._libraries)

    @property
    def dropped(self) -> int:
        """Lines that the log file lost since the start."""
        return self.file.dropped

    def close(self) -> None:
        """Write what waits and let go of everything."""
        logging.getLogger().removeHandler(self._libraries)
        for leave in self._leave:
            leave()
        if self.terminal is not None:
            self.terminal.close()
        self.file.close()


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Colour belongs on a terminal that has any, unless NO_COLOR says no (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

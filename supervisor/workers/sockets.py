"""The workers' socket files: numbered, each number used by one process at a time."""

import contextlib
import itertools
import os
from pathlib import Path

from shared.sockets import SocketPathError, remove_stale
from supervisor.home import Home
from supervisor.telemetry.events import Events


class SocketFiles:
    """Gives out paths for sockets in the run folder."""

    def __init__(self, home: Home, events: Events) -> None:
        self._home = home
        self._events = events
        self._taken: set[Path] = set()

    def clear_stale(self) -> None:
        """Remove what a supervisor that was killed left. Anything but a dead socket stays, and is told."""
        with contextlib.suppress(OSError):
            for path in sorted(self._home.run.glob("w-*.sock")):
                self._usable(path)

    def take(self) -> Path:
        """A path where a socket can be bound."""
        for number in itertools.count(1):
            path = self._home.worker_socket(number)
            if path not in self._taken and self._usable(path):
                self._taken.add(path)
                return path
        raise AssertionError("unreachable")

    def give_back(self, path: Path) -> None:
        self._taken.discard(path)

    def _usable(self, path: Path) -> bool:
        if not os.path.lexists(path):
            return True
        try:
            remove_stale(path)
        except (SocketPathError, OSError) as error:
            self._events.emit("socket.left_alone", level="warning", reason=str(error))
            return False
        return True

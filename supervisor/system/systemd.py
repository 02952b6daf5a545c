"""Tells systemd how the program is, when systemd runs it: ready, alive, stopping. Source: sd_notify(3)."""

import os
import socket
from collections.abc import MutableMapping
from typing import Final

_ADDRESS: Final = "NOTIFY_SOCKET"
_INTERVAL: Final = "WATCHDOG_USEC"
_OF_PID: Final = "WATCHDOG_PID"


class Notifier:
    """Sends states to the service manager. Without one every method does nothing and returns False.

    No method blocks or raises: systemd that can't be told must not be the end of a program that serves.
    """

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s if address else None
        """Seconds between two calls of `alive` that keep systemd content; None if it does not watch."""
        self._socket = _connected(address) if address else None

    @classmethod
    def from_environ(
        cls, environ: MutableMapping[str, str] = os.environ, *, pid: int | None = None
    ) -> "Notifier":
        """What systemd asked for. Takes its variables out of `environ`: they are not for child processes."""
        address = environ.pop(_ADDRESS, None)
        interval = environ.pop(_INTERVAL, "")
        of_pid = environ.pop(_OF_PID, "")
        is_for_us = not of_pid or of_pid == str(os.getpid() if pid is None else pid)
        watched = interval.isdecimal() and int(interval) > 0 and is_for_us
        # Half of what systemd allows: a single late call is no reason to be killed.
        return cls(address, watchdog_s=int(interval) / 2e6 if watched else None)

    def ready(self, status: str = "") -> bool:
        """The program serves from now on; `status` is what `systemctl status` shows."""
        return self._send("READY=1", status)

    def status(self, text: str) -> bool:
        return self._send("", text)

    def alive(self) -> bool:
        """The event loop runs. To be called every `watchdog_s`."""
        return self._send("WATCHDOG=1")

    def stopping(self, status: str = "") -> bool:
        """The program was told to stop, and is at it."""
        return self._send("STOPPING=1", status)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str, status: str = "") -> bool:
        if self._socket is None:
            return False
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split()))
        try:
            self._socket.send("\n".join(lines).encode("utf-8", "replace"))
        except OSError:
            # The queue is full, or systemd is being replaced; the next call tells it again.
            return False
        return True


def _connected(address: str) -> socket.socket | None:
    """A socket to `address`: a path, or a name in the abstract space that begins with @."""
    if not address.startswith(("/", "@")):
        return None
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.setblocking(False)
    try:
        notify.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        notify.close()
        return None
    return notify

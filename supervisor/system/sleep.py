"""Keeps a Mac from falling asleep by itself while requests run.

The display may sleep, and closing the lid or choosing Sleep still works: only idle sleep is held off.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

LINGER_S: Final = 30.0
"""Held so long after the last request, so that a conversation does not take and release it at every turn."""

_END_TIMEOUT_S: Final = 1.0


class Assertion(Protocol):
    """Something that holds off idle sleep while it is held."""

    def take(self) -> None:
        """Hold it; nothing happens when it is held already."""

    def release(self) -> None:
        """Let go; nothing happens when it is not held."""

    def close(self) -> None:
        """Let go for good and leave nothing behind."""


class NoAssertion:
    """For systems that don't fall asleep under a server, and for tests."""

    def take(self) -> None:
        """Nothing to hold."""

    def release(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is left."""


def caffeinate_command(pid: int) -> list[str]:
    """`-i` holds off idle sleep; `-w` ends it with the process it serves, however that ends."""
    return ["caffeinate", "-i", "-w", str(pid)]


class Caffeinate:
    """Holds idle sleep off by a `caffeinate` process of its own. Raises nothing when there is none."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        on_failure: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        self._command = list(command or caffeinate_command(os.getpid()))
        self._on_failure = on_failure
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []

    def is_held(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def take(self) -> None:
        """Start the process unless it runs. Somebody else may have ended it: then it is started anew."""
        self._reap()
        if self.is_held():
            return
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            self._on_failure(error)

    def release(self) -> None:
        """End the process, without waiting for its end."""
        if self._process is not None:
            self._process.terminate()
            self._ending.append(self._process)
            self._process = None
        self._reap()

    def close(self) -> None:
        """End the process and wait for that, at most a second before it is killed."""
        self.release()
        for process in self._ending:
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ending.clear()

    def _reap(self) -> None:
        self._ending = [process for process in self._ending if process.poll() is None]


def system_assertion(
    platform: str = sys.platform, *, on_failure: Callable[[OSError], None] = lambda _: None
) -> Assertion:
    """What holds off sleep on this system."""
    return Caffeinate(on_failure=on_failure) if platform == "darwin" else NoAssertion()


class SleepGuard:
    """Decides when to hold: from the first running request until `linger_s` after the last one.

    Whoever knows the requests calls `update`, at every change and now and then in between.
    """

    def __init__(self, assertion: Assertion, *, linger_s: float = LINGER_S) -> None:
        self._assertion = assertion
        self._linger_s = linger_s
        self._busy_at: float | None = None

    def is_holding(self) -> bool:
        return self._busy_at is not None

    def update(self, running: int, now_s: float) -> None:
        """`running` requests run at `now_s` of a monotonic clock."""
        if running > 0:
            self._busy_at = now_s
            self._assertion.take()
        elif self._busy_at is not None and now_s - self._busy_at >= self._linger_s:
            self._busy_at = None
            self._assertion.release()

    def close(self) -> None:
        """Let the machine sleep again, at once."""
        self._busy_at = None
        self._assertion.close()

"""Commands of the operating system, run one at a time, and how a failure of one is told."""

import os
import subprocess
from collections.abc import Callable, Sequence

import msgspec


class ServiceError(Exception):
    """Raised when the service can't be managed. The message is safe to print and says what to do."""


class Output(msgspec.Struct, frozen=True):
    """What a command left behind."""

    code: int
    """Exit code; negative is the signal that ended it."""
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        """The last line of what it said, which is where the reason is."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


Runner = Callable[[Sequence[str]], Output]


def run_command(command: Sequence[str], *, timeout_s: float = 60.0) -> Output:
    """Run `command` to its end, with nothing on its stdin and its messages in English.

    Raises ServiceError when there is no such command, or when it does not end in time.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        raise ServiceError(f"{command[0]} is not on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise ServiceError(f"`{' '.join(command)}` did not end within {timeout_s:.0f} s") from None
    return Output(done.returncode, done.stdout, done.stderr)

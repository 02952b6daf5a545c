"""What the service asks of whatever manages it, launchd or systemd."""

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from supervisor.system.job import Job, ManagerName

Phase = Literal["not loaded", "stopped", "starting", "running", "stopping", "waiting to restart"]


class JobState(msgspec.Struct, frozen=True):
    """What the manager says of the service."""

    phase: Phase
    pid: int | None = None
    last_exit: str | None = None
    """How it ended last, for people; None when it never ran or still runs its first time."""
    failed: bool = False
    """Whether that was a failure: neither a clean exit nor a stop that was asked for."""
    disabled: bool = False
    """Whether somebody told the manager not to start it at login."""
    stop_s: float | None = None
    """Seconds from SIGTERM to SIGKILL, where the manager tells."""


class Manager(Protocol):
    """One service manager with our one service.

    Every method raises ServiceError with a sentence that says what to do. Methods that start or stop
    return when the manager has taken note of it (`start`) or the program has ended (`stop`).
    """

    name: ManagerName
    file: Path
    """The plist or the unit."""

    def render(self, job: Job) -> bytes:
        """The service file's content."""

    def read(self) -> Job | None:
        """The job that the service file holds; None when there is no such file."""

    def write(self, job: Job) -> None:
        """Write the service file. It counts from the next `start` on."""

    def remove(self) -> None:
        """Remove the service file, which need not be there."""

    def state(self) -> JobState: ...

    def start(self) -> None:
        """Have it started at every login, and start it now unless it runs."""

    def stop(self) -> None:
        """Stop it until it is started again, or until the next login."""

    def retire(self) -> None:
        """Stop it, and have it not started at login any more."""

    def retry(self) -> None:
        """Start it anew at once. Only for a program that serves nobody: it may be killed."""

    def commands(self, verb: Literal["start", "stop", "retire"]) -> list[str]:
        """The commands that change something, as a person would type them."""

    def notes(self) -> list[str]:
        """What a person should know about services like this one on this machine."""

"""How a worker process ended, in words that a person can use."""

import signal
from typing import Literal

import msgspec

Moment = Literal["spare", "loading", "ready", "stopping"]


class Exit(msgspec.Struct, frozen=True):
    """The end of one process. Neither `code` nor `signal` is set when it could not be started at all."""

    during: Moment
    """What it was doing: waiting for a model, loading it, serving it, or ending as it was told."""
    code: int | None = None
    signal: str | None = None
    cause: str | None = None
    """Why we ended it, what it said was wrong, or why it could not be started."""
    lived_s: float = 0.0
    last_lines: tuple[str, ...] = ()
    """The last lines that it wrote to stderr, oldest first."""

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended as processes do for which there is no memory. MLX doesn't raise when memory runs
        out: the process dies of SIGSEGV, or the system kills it."""
        return (
            self.during == "loading"
            and self.cause is None
            and self.signal in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT")
        )

    def describe(self) -> str:
        """`exit code 1`, `killed by SIGSEGV while loading: it may not fit into memory`."""
        if self.code is None and self.signal is None:
            return f"it could not be started: {self.cause or 'unknown reason'}"
        how = f"killed by {self.signal}" if self.signal else f"exit code {self.code}"
        if self.cause:
            return f"{how}: {self.cause}"
        if self.out_of_memory:
            return f"{how} while loading: it may not fit into memory"
        return f"{how} while loading" if self.during == "loading" else how


def exit_of(
    returncode: int, during: Moment, *, cause: str | None, lived_s: float, last_lines: tuple[str, ...]
) -> Exit:
    """The Exit for what `waitpid` told: a negative `returncode` is the signal's number."""
    name = None
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:  # real-time signals have no names
            name = f"signal {-returncode}"
    return Exit(
        during=during,
        code=None if name else returncode,
        signal=name,
        cause=cause,
        lived_s=round(lived_s, 3),
        last_lines=last_lines,
    )

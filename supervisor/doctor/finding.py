"""What one look at this machine found."""

from typing import Literal

import msgspec

Status = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One finding. `fail` keeps the supervisor from serving well; `warn` is worth a thought."""

    check: str
    """What was looked at, in a word."""
    status: Status
    says: str
    """What was found."""
    means: str | None = None
    """What that means; None where all is fine."""
    mend: str | None = None
    """The command that mends it, or what to do, where there is something to do."""


def ok(check: str, says: str) -> Finding:
    return Finding(check, "ok", says)


def warn(check: str, says: str, means: str, mend: str | None = None) -> Finding:
    return Finding(check, "warn", says, means, mend)


def fail(check: str, says: str, means: str, mend: str | None = None) -> Finding:
    return Finding(check, "fail", says, means, mend)

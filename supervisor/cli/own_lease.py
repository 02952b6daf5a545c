"""The lease under which this program runs: `mlx-supervisor run` has the machine for it."""

import os
from typing import Any, Final

from supervisor.cli.client import ANSWER_S, Client
from supervisor.cli.errors import RefusedError

VARIABLE: Final = "MLX_SUPERVISOR_LEASE"
"""Gives a command, and what it runs, the token of the lease that has the machine for it."""


def own_lease(supervisor: Client) -> dict[str, Any] | None:
    """The lease that has the machine, if it has it for us."""
    token = os.environ.get(VARIABLE)
    if token is None:
        return None
    try:
        lease: dict[str, Any] = supervisor.post("/api/lease/own", {"token": token}, timeout_s=ANSWER_S)
    except RefusedError as error:
        if error.param == "token":
            return None  # of a lease that is over, or of another supervisor's
        raise
    return lease


def refuse_within_lease(supervisor: Client) -> None:
    """For what waits until the lease ends. Raises RefusedError when that is our own: it would wait for us."""
    lease = own_lease(supervisor)
    if lease is not None:
        raise RefusedError(
            f"{lease['holder']} has the machine, and this runs in it: it would wait for its own end; "
            "models answer again when that has ended"
        )

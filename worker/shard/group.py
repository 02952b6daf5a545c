"""Joins the processes that compute one model together, by the variables and the file that mlx reads."""

import contextlib
import errno
import json
import os
import secrets
import socket
import tempfile
from typing import Any, Final

import mlx.core as mx

from shared.launch import Shards

_FIRST_PORT, _LAST_PORT = 41_000, 59_000
"""Below the ports that systems give out by themselves on macOS."""
_BACKENDS: Final = {"ring": "ring", "jaccl": "jaccl", "jaccl-ring": "jaccl"}


class GroupError(Exception):
    """Raised when the ranks can't be joined. The message is a sentence for people."""


def choose_addresses(shards: Shards) -> tuple[tuple[str, ...], ...]:
    """Where each rank listens. Ports are free on this machine; elsewhere they are hoped to be."""
    return tuple(tuple(f"{ip}:{_port(ip)}" for ip in host.ips) for host in shards.hosts)


def _port(ip: str) -> int:
    for _ in range(64):
        port = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT)
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with contextlib.closing(socket.socket(family)) as probe:
            try:
                probe.bind((ip, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                # Another machine's address, of which nothing is known here.
            return port
    raise GroupError("there is no free port for the ranks to meet at")


def join(shards: Shards, rank: int, addresses: tuple[tuple[str, ...], ...]) -> Any:
    """Wait for all ranks; the group. On the thread that computes. Raises GroupError.

    Source of the variables and files: mlx's own launcher, `mlx.launch`.
    """
    os.environ.update(shards.environment)
    os.environ["MLX_RANK"] = str(rank)
    if shards.backend == "ring":
        variable, content = "MLX_HOSTFILE", json.dumps(addresses)
    else:
        variable, content = "MLX_IBV_DEVICES", json.dumps([host.rdma for host in shards.hosts])
        os.environ["MLX_JACCL_COORDINATOR"] = addresses[0][0]
        if shards.backend == "jaccl-ring":
            os.environ["MLX_JACCL_RING"] = "1"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(content)
        file.flush()
        os.environ[variable] = file.name
        try:
            group = mx.distributed.init(strict=True, backend=_BACKENDS[shards.backend])
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise GroupError(f"the ranks could not be joined by {shards.backend}: {reason}") from error
    if group.size() != len(shards.hosts) or group.rank() != rank:
        raise GroupError(f"rank {rank} of {len(shards.hosts)} is {group.rank()} of {group.size()} to mlx")
    return group


def meet() -> None:
    """Wait until every rank is here."""
    mx.eval(mx.distributed.all_sum(mx.array(1.0)))

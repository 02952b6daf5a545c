"""The machines that a model is spread over, as `hosts` in its settings names them."""

import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.launch import Host, Shards

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,254}")
"""What ssh is told: it must not look like one of its options."""
_VARIABLE: Final = re.compile(r"(MLX_[A-Z0-9_]+)=(.*)")
_MOST_BYTES: Final = 2**20
_MOST_HOSTS: Final = 64


class HostsError(Exception):
    """Raised when `hosts` can't be used; the message is a sentence without paths."""


class _FileHost(msgspec.Struct, frozen=True):
    ssh: str
    ips: tuple[str, ...] = ()
    rdma: tuple[str | None, ...] = ()


class _HostFile(msgspec.Struct, frozen=True):
    """What `mlx.distributed_config --output-hostfile` writes. Source: mlx's own reader."""

    hosts: Annotated[tuple[_FileHost, ...], Meta(max_length=_MOST_HOSTS)]
    backend: str = ""
    envs: tuple[str, ...] = ()


def read_hosts(hosts: Sequence[str]) -> Shards:
    """The machines that `hosts` names, or that the one file does which it names. Raises HostsError."""
    if len(hosts) == 1 and hosts[0].endswith(".json"):
        shards = _from_file(Path(hosts[0]).expanduser())
    else:
        shards = Shards(tuple(map(_host, hosts)))
    _check(shards)
    return shards


def _host(text: str) -> Host:
    """`NAME=IP`, or an address alone."""
    name, _, address = text.partition("=")
    return Host(name, (address or name,))


def _from_file(path: Path) -> Shards:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise HostsError("its file of hosts is far too large")
        found = msgspec.json.decode(path.read_bytes(), type=_HostFile | tuple[_FileHost, ...])
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise HostsError(f"its file of hosts can't be read: {reason}") from None
    except msgspec.MsgspecError as error:
        raise HostsError(f"its file of hosts is none that mlx.distributed_config writes: {error}") from None
    file = found if isinstance(found, _HostFile) else _HostFile(found)
    variables = {}
    for line in file.envs:
        match = _VARIABLE.fullmatch(line)
        if match is None:
            raise HostsError("its file of hosts sets a variable that is none of mlx's")
        variables[match[1]] = match[2]
    backend = file.backend or "ring"
    if backend not in ("ring", "jaccl", "jaccl-ring"):
        raise HostsError(
            f"its file of hosts wants the backend {backend[:20]!r}; ring and jaccl are supported"
        )
    return Shards(
        tuple(Host(host.ssh, host.ips, host.rdma) for host in file.hosts),
        backend,  # type: ignore[arg-type]  # compared above
        variables,
    )


def _check(shards: Shards) -> None:
    count = len(shards.hosts)
    if not 2 <= count <= _MOST_HOSTS:
        raise HostsError(f"its `hosts` name {count} machines; a model is spread over 2 to {_MOST_HOSTS}")
    for rank, host in enumerate(shards.hosts):
        if not _NAME.fullmatch(host.ssh):
            raise HostsError(f"{host.ssh[:40]!r} in its `hosts` is no name of a machine")
        wanted = shards.backend == "ring" or rank == 0
        if (wanted and not host.ips) or not all(map(_is_address, host.ips)):
            raise HostsError(f'{host.ssh!r} in its `hosts` needs an address: "{host.ssh}=10.0.0.2"')
        if shards.backend != "ring" and len(host.rdma) != count:
            raise HostsError(f"{host.ssh!r} in its `hosts` has no RDMA devices for {count} machines")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

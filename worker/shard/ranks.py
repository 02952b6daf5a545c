"""The other ranks, as rank 0 sees them: processes that it starts here or over ssh, and that end with it.

`mlx.launch` starts all ranks alike, and gives neither a descriptor nor a line of its own to any of them. Here
rank 0 is the worker that the supervisor knows; it starts the others itself, with what mlx reads.
"""

import asyncio
import contextlib
import logging
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from shared.errors import PublicError
from shared.launch import Host, LaunchRecord
from shared.status import Failed, FailureKind, Warm, decode_status
from worker.engine.thread import Engine
from worker.model.failures import LoadError
from worker.shard.batch import Clock, LeadingCache
from worker.shard.group import choose_addresses, join
from worker.shard.orders import Join, Order, RankRecord

log = logging.getLogger(__name__)

_COMMAND: Final = (sys.executable, "-m", "worker.shard")
_SSH: Final = (
    "ssh",
    "-T",
    # Nobody is there to type a password, and a machine that is off must not take minutes to be so.
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)


class Ranks:
    """Of one sharded model. `on_loss` is called from a thread, with the reason, when one of them is gone."""

    def __init__(self, record: LaunchRecord, on_loss: Callable[[LoadError], None]) -> None:
        """Starts them. Raises OSError and GroupError."""
        shards = record.options.shards
        assert shards is not None
        self.addresses = choose_addresses(shards)
        self.clock = Clock(time.monotonic)
        self._shards = shards
        self._missing = len(shards.hosts) - 1
        self.lost = False
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._on_loss = on_loss
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank, host in enumerate(shards.hosts[1:], start=1):
            process = subprocess.Popen(command(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._processes.append(process)
            own = RankRecord(rank, record.directory, record.options, self.addresses)
            self._write(process, msgspec.json.encode(own))
            name = f"rank {rank} on {host.ssh}"
            threading.Thread(target=self._watch, args=(process, name), name=name, daemon=True).start()

    def wait(self) -> None:
        """Wait, in any thread, until all of them have begun, or one is lost."""
        self._begun.wait()

    def join(self) -> None:
        """Become one group; on the engine's thread. Raises GroupError.

        mlx lets no other Python run meanwhile, so call it when all have begun.
        """
        self.tell(Join())
        join(self._shards, 0, self.addresses)

    def cache(self, limit_bytes: int) -> LeadingCache:
        """A prompt cache that the others do alike with theirs."""
        return LeadingCache(limit_bytes, tell=self.tell, clock=self.clock)

    def tell(self, order: Order) -> None:
        """Tell all of them; on the engine's thread, before doing the same."""
        line = msgspec.json.encode(order)
        for process in self._processes:
            self._write(process, line)

    def _write(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
        except OSError:
            log.debug("a rank does not listen any more; whoever watches it tells")

    def _watch(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdout is not None
        why, kind = "", FailureKind.OTHER
        for line in process.stdout:
            try:
                status = decode_status(line)
            except msgspec.MsgspecError:
                continue
            if isinstance(status, Failed):
                why, kind = f": {status.message}", status.kind
            elif isinstance(status, Warm):
                with self._lock:
                    self._missing -= 1
                if not self._missing:
                    self._begun.set()
        code = process.wait()
        self.lost = True
        self._on_loss(LoadError(kind, f"{name} ended ({_ending(code)}){why}"))
        self._begun.set()


async def gather(record: LaunchRecord, engine: Engine, on_loss: Callable[[LoadError], None]) -> Ranks | None:
    """Start the ranks on other machines, if there are to be any, and join them on the engine's thread.

    `on_loss` is called on the loop. Does not return when one is lost meanwhile. Raises OSError and
    GroupError.
    """
    if record.options.shards is None:
        return None
    loop = asyncio.get_running_loop()

    def lost(loss: LoadError) -> None:
        # When the loop is closed nobody listens any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(on_loss, loss)

    ranks = await asyncio.to_thread(Ranks, record, lost)
    await asyncio.to_thread(ranks.wait)
    if ranks.lost:
        await asyncio.Event().wait()
    await engine.call(ranks.join)
    return ranks


def no_shards(what: str) -> PublicError:
    """The answer to what only a model on a single machine can do."""
    return PublicError(
        501, "not_supported", f"{what} can't be done with a model that is spread over several machines."
    )


def command(host: Host) -> list[str]:
    """How to start a rank on `host`. The same Python, at the same path, is there."""
    return list(_COMMAND) if host.local else [*_SSH, "--", host.ssh, shlex.join(_COMMAND)]


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"

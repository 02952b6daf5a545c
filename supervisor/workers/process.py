"""One worker process, from its spawn until it is reaped and its socket file is gone.

Nothing in here decides anything: it starts, listens, signals and tells how it ended.

| state    | `assign`         | says `ready` | `stop`            | `kill`   | the process ends |
| -------- | ---------------- | ------------ | ----------------- | -------- | ---------------- |
| spare    | record, loading  | ignored      | TERM, stopping    | KILL     | exited           |
| loading  | an error of ours | ready        | TERM, stopping    | KILL     | exited           |
| ready    | an error of ours | ignored      | TERM, stopping    | KILL     | exited           |
| stopping | an error of ours | ignored      | waits for the end | KILL     | exited           |
| exited   | ignored          | ignored      | ignored           | ignored  |                  |

`assign` on an exited process is ignored because a spare may die unseen just before: whoever waits for
`ready` also waits for `exited`. A worker of another version is killed as soon as it says so.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import psutil

from shared import __version__
from shared.launch import LaunchRecord, Preview
from shared.sockets import SocketPathError, remove_stale
from shared.status import (
    STATUS_FD_ARGUMENT,
    Failed,
    Hello,
    Progress,
    Ready,
    Warm,
    decode_status,
)
from supervisor.telemetry.appendfile import AppendFile
from supervisor.workers import family
from supervisor.workers.environment import worker_environment
from supervisor.workers.exits import Exit, exit_of
from supervisor.workers.output import LineReader, Output

State = Literal["spare", "loading", "ready", "stopping", "exited"]

_HOLDERS_S: Final = 0.05
"""How long after its end a worker's pipes may stay open before somebody else must be holding them."""


class WorkerProcess:
    """A worker process. Made by `spawn`; `exited` always comes, and everything is cleaned up by then."""

    def __init__(
        self, process: asyncio.subprocess.Process, command: tuple[str, ...], pipes: "_Pipes", marker: str
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._marker = marker
        self._started = self._loop.time()
        self._lifeline: int | None = pipes.lifeline
        self._output = Output()
        self._cause: str | None = None
        self._family: list[psutil.Process] = []
        self.pid = process.pid
        self.command = command
        self.created_s = _created(process.pid)
        """When the OS started it, seconds since 1970: with the pid this names one process for ever."""
        self.state: State = "spare"
        self.warm = False
        self.mismatch: str | None = None
        """The version it said it is, when that is not ours."""
        self.load_failure: Failed | None = None
        self.progress: Progress | None = None
        self.heard_s = self._started
        """Loop time of the last status message."""
        self.socket: Path | None = None
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        self._status = LineReader(pipes.status, self._heard)
        self._stdout = LineReader(pipes.stdout, self._output.stdout)
        self._stderr = LineReader(pipes.stderr, self._output.stderr)
        self._reaper = self._loop.create_task(self._reap(), name=f"reaper of worker {self.pid}")

    @classmethod
    async def spawn(cls, command: Sequence[str], environ: Mapping[str, str]) -> "WorkerProcess":
        """Start `command` in our own process group; it waits for its record. Raises OSError."""
        marker = secrets.token_hex(8)
        pipes = _Pipes()
        whole = (*command, STATUS_FD_ARGUMENT, str(pipes.child_status))
        try:
            process = await asyncio.create_subprocess_exec(
                *whole,
                stdin=pipes.child_stdin,
                stdout=pipes.child_stdout,
                stderr=pipes.child_stderr,
                pass_fds=(pipes.child_status,),
                env=worker_environment(environ, marker),
            )
        except BaseException:
            pipes.close_ours()
            raise
        finally:
            pipes.close_childs()
        return cls(process, whole, pipes, marker)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first."""
        return self._output.tail

    @property
    def dropped_lines(self) -> int:
        return self._output.dropped

    def assign(
        self, record: LaunchRecord, log: AppendFile, on_lost: Callable[[int], None] | None = None
    ) -> None:
        """Tell the process which model it serves, and write its output to `log` from now on.

        `on_lost` is told how many lines `log` could not take.
        """
        if self.state == "exited":
            return
        assert self.state == "spare", f"a worker that is {self.state} can't take a model"
        self.state = "loading"
        self.heard_s = self._loop.time()
        self.socket = Path(record.socket)
        self._output.attach(log, self.pid, on_lost)
        self._tell(record.line())

    def preview(self, preview: Preview) -> None:
        """Let a spare read ahead for the model that it is likely to get."""
        if self.state == "spare":
            self._tell(preview.line())

    def _tell(self, line: bytes) -> None:
        """Write to a process that waits for its record."""
        assert self._lifeline is not None
        # What it was told before it has read, and the pipe holds 16 KiB at least: a short write means a line
        # beyond all reason.
        try:
            written = os.write(self._lifeline, line)
        except OSError:
            return  # it is dead; the reaper tells
        if written < len(line):
            self.kill("its launch record is too long for the pipe")

    async def stop(self, *, grace_s: float, cause: str | None = None) -> Exit:
        """SIGTERM, SIGKILL after `grace_s` seconds, and wait for the end. May be called again."""
        if self.state not in ("stopping", "exited"):
            self.state = "stopping"
            self._cause = cause
            self._family = await asyncio.to_thread(family.descendants, self.pid)
            self._signal("terminate")
        await asyncio.wait({self.exited}, timeout=grace_s)
        if not self.exited.done():
            self._signal("kill")
        return await asyncio.shield(self.exited)

    def kill(self, cause: str | None = None) -> None:
        """SIGKILL now. The first `cause` given is the one that the exit tells."""
        if self.state != "exited":
            self._cause = self._cause or cause
            self._signal("kill")

    def _signal(self, how: Literal["terminate", "kill"]) -> None:
        # asyncio signals only what it has not reaped, so the pid can't be another process's.
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate() if how == "terminate" else self._process.kill()

    def _heard(self, lines: list[bytes]) -> None:
        for line in lines:
            self.heard_s = self._loop.time()
            try:
                status = decode_status(line)
            except msgspec.MsgspecError:
                self._output.stderr([b"not a status message: " + line[:200]])
                continue
            match status:
                case Hello(version=version) if version != __version__:
                    self.mismatch = version
                    self.kill(f"it is version {version}, the supervisor is {__version__}")
                case Warm():
                    self.warm = True
                case Progress():
                    self.progress = status
                case Failed():
                    self.load_failure = status
                case Ready() if self.state == "loading":
                    self.state = "ready"
                    self.ready.set_result(status)
                case _:
                    pass

    async def _reap(self) -> None:
        returncode = await self._process.wait()
        lived_s = self._loop.time() - self._started
        during = self.state
        assert during != "exited"
        self.state = "exited"
        # The pipes may still hold its last words, and why a load failed.
        for reader in (self._status, self._stderr, self._stdout):
            reader.drain()
        try:
            await self._end_family(expected=during == "stopping")
        finally:
            self._close()
            self.exited.set_result(
                exit_of(returncode, during, cause=self._cause, lived_s=lived_s, last_lines=self._output.tail)
            )

    async def _end_family(self, *, expected: bool) -> None:
        """End what the worker started. One that was told to end has been asked for them before."""
        relatives = self._family
        if expected and not (self._stdout.at_end and self._stderr.at_end):
            await asyncio.sleep(_HOLDERS_S)
            self._stdout.drain()
            self._stderr.drain()
        if not (expected and self._stdout.at_end and self._stderr.at_end):
            relatives = relatives + await asyncio.to_thread(family.marked, self._marker)
        if relatives:
            await asyncio.to_thread(family.end, relatives)

    def _close(self) -> None:
        for reader in (self._status, self._stderr, self._stdout):
            reader.drain()
            reader.close()
        self._output.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self.socket is not None:
            # A killed worker leaves its socket file. Whatever is not a dead socket is not ours to remove.
            with contextlib.suppress(SocketPathError, OSError):
                remove_stale(self.socket)
        if not self.ready.done():
            self.ready.cancel()


class _Pipes:
    """The pipes of one worker. Made by hand: asyncio's own would make `wait()` wait for whoever holds them.

    Both ends are close-on-exec, so no other worker inherits a lifeline.
    """

    def __init__(self) -> None:
        made: list[int] = []
        try:
            for _ in range(4):
                made += os.pipe()
        except OSError:
            _close_all(made)
            raise
        self.child_stdin, self.lifeline, self.status, self.child_status = made[:4]
        self.stdout, self.child_stdout, self.stderr, self.child_stderr = made[4:]
        os.set_blocking(self.lifeline, False)

    def close_childs(self) -> None:
        _close_all([self.child_stdin, self.child_status, self.child_stdout, self.child_stderr])

    def close_ours(self) -> None:
        _close_all([self.lifeline, self.status, self.stdout, self.stderr])


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _created(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0  # it died and was reaped already

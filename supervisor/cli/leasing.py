"""Other work on the machine: run."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from supervisor.cli.client import Client, Held
from supervisor.cli.errors import RefusedError
from supervisor.cli.options import HomeOption, supervisor_of
from supervisor.cli.own_lease import VARIABLE, own_lease
from supervisor.cli.terminal import clean

_TOLD_S: Final = 2.0
"""How long the supervisor may take to hear which process the command is."""
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
_OUT_OF_THE_WAY = 100
"""Descriptors from here on are not those that scripts give numbers to."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What to run, after `--`.")],
    unload: Annotated[
        bool, typer.Option("--unload", help="Unload the models meanwhile, to have their memory as well.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Give up when the machine isn't free by then.", show_default=False
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Run a command with the machine for itself: models finish what they do and hold still until it ends.

    Requests wait meanwhile. Everything is given back when the command ends, however it ends. The exit code is
    the command's. A command that outlives `run`, because that was killed, keeps the machine to its end.
    Under a command that has the machine already, `run` waits for nothing.

    \b
    Example:
      mlx-supervisor run --unload -- sh finetune.sh
    """
    if command[0].startswith("-"):
        raise typer.BadParameter(
            f"no such option; a program of that name is ./{command[0]}", param_hint=command[0]
        )
    program = shutil.which(command[0])
    if program is None:
        there = bool(command[0]) and Path(command[0]).exists()
        name = clean(command[0]) or "''"
        sys.stderr.write(f"mlx-supervisor: {name}: {'not executable' if there else 'no such command'}\n")
        raise typer.Exit(_NOT_EXECUTABLE if there else _NOT_FOUND)
    supervisor = supervisor_of(home)
    if _is_ours(supervisor, unload=unload):
        _become(program, command)
    body = {"holder": Path(program).name, "unload": unload, "timeout_s": timeout}
    with supervisor.hold("/api/lease", body) as lease:
        token = _wait(lease.lines)
        raise typer.Exit(_run(program, command, token, supervisor, lease))


def _is_ours(supervisor: Client, *, unload: bool) -> bool:
    """Whether we are in a command that has the machine: to wait for its end would be to wait for our own.

    Raises RefusedError when it has it with the models, and they shall be unloaded.
    """
    lease = own_lease(supervisor)
    if lease is None:
        return False
    if unload and not lease["unload"]:
        raise RefusedError(
            f"{lease['holder']} has the machine, with the models loaded, and this runs in it: "
            "give --unload to that run"
        )
    return True


def _become(program: str, command: list[str]) -> NoReturn:
    """Run the command in our place."""
    sys.stdout.flush()
    try:
        os.execv(program, command)  # noqa: S606  # it is what we were asked to run
    except OSError as error:
        raise typer.Exit(_not_started(command, error)) from None


def _not_started(command: list[str], error: OSError) -> int:
    sys.stderr.write(f"mlx-supervisor: {clean(command[0])} can't be started: {error.strerror}\n")
    return _NOT_EXECUTABLE


def _wait(news: Iterator[Any]) -> str:
    """Until the machine is ours; the lease's token. Raises RefusedError when it won't be."""
    told = ""
    for line in news:
        match line["state"]:
            case "leased":
                return str(line["token"])
            case "waiting":
                if line["reason"] != told:
                    told = line["reason"]
                    sys.stderr.write(f"waiting for the machine: {clean(told)}\n")
            case _:
                raise RefusedError(f"the machine could not be leased: {line['reason']}")
    raise RefusedError("the supervisor ended before the machine was free")


def _run(program: str, command: list[str], token: str, supervisor: Client, lease: Held) -> int:
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    def leave_to_command(_number: int, _: FrameType | None) -> None:
        """Ctrl-C reaches the command by itself; its end is ours."""

    over = threading.Event()

    def watch(command_pid: int) -> None:
        # If it does not come to know it, this is no worse a lease.
        with contextlib.suppress(RefusedError):
            told = {"token": token, "command_pid": command_pid}
            supervisor.post("/api/lease/own", told, timeout_s=_TOLD_S)
        _watch(lease.lines, over)

    watching: threading.Thread | None = None
    # Handlers, not SIG_IGN: the command would inherit that.
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, leave_to_command)
    try:
        process = _started(program, command, {**os.environ, VARIABLE: token}, lease)
        for number in early:
            process.send_signal(number)
        watching = threading.Thread(target=watch, args=(process.pid,), daemon=True)
        watching.start()
        code = process.wait()
    except OSError as error:
        return _not_started(command, error)
    finally:
        over.set()
        lease.end()
        # What it reads is closed next.
        if watching is not None:
            watching.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _started(
    program: str, command: list[str], environ: Mapping[str, str], lease: Held
) -> "subprocess.Popen[bytes]":
    """The command, which has the lease's connection as well: when we are killed, it works on, and the models
    must not come back beside it. Raises OSError."""
    try:
        inherited = fcntl.fcntl(lease.descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except OSError:
        inherited = os.dup(lease.descriptor)  # the limit is lower
    try:
        return subprocess.Popen(command, executable=program, env=environ, pass_fds=(inherited,))
    finally:
        os.close(inherited)


def _watch(news: Iterator[Any], over: threading.Event) -> None:
    """Tell when the lease ends before the command does."""
    reason = "the connection to the supervisor was lost"
    try:
        for line in news:
            if line["state"] == "ended":
                reason = line["reason"]
    except RefusedError as error:
        reason = str(error)
    if not over.is_set():
        sys.stderr.write(f"the machine is not leased any more ({clean(reason)}); the command goes on\n")

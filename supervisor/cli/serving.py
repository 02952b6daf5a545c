"""The supervisor itself: start, stop, status."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from shared import __version__
from shared.sizes import format_duration
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, JsonOption, chosen_home, supervisor_of
from supervisor.cli.terminal import say, say_json
from supervisor.cli.waiting import wait_for_exit

RELOAD_S = 60.0
"""Disks may be slow, and all models are looked at."""


def start(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on. [default: 127.0.0.1]", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="TCP port; 0 takes a free one. [default: 8080]", show_default=False),
    ] = None,
    home: HomeOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Settings; else config.toml in the state folder.", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Load this model at once; may be given again.", show_default=False),
    ] = None,
    no_spare: Annotated[
        bool, typer.Option("--no-spare", help="Keep no worker process ready for the next load.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a --host that other machines can reach.")
    ] = False,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Serve the one --model in this process, with no supervisor: for debugging and the "
            "smallest machines.",
        ),
    ] = False,
) -> None:
    """Serve the models of this machine until Ctrl-C.

    \b
    Example:
      mlx-supervisor start --port 8080 --model smollm2-135m
    """
    from supervisor import server
    from supervisor.settings import StartOptions

    flags: dict[str, object] = {}
    if host is not None:
        flags["server.host"] = host
    if port is not None:
        flags["server.port"] = port
    if no_spare:
        flags["memory.spare"] = False
    if insecure:
        flags["server.insecure"] = True
    options = StartOptions(home=chosen_home(home), config=config, flags=flags, models=tuple(model or ()))
    if in_process and len(options.models) != 1:
        raise typer.BadParameter("give the one model that it serves with --model", param_hint="--in-process")
    try:
        if in_process:
            from supervisor.in_process import become_worker

            become_worker(options)
        code = server.run(options)
    except server.Refused as refused:
        raise RefusedError(str(refused)) from None
    raise typer.Exit(code)


def stop(
    home: HomeOption = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for its end.")
    ] = 60,
) -> None:
    """Stop the supervisor: answers under way may finish, then everything ends.

    \b
    Example:
      mlx-supervisor stop
    """
    client = supervisor_of(home)
    holder = client.home.holder()
    try:
        pid = int(client.get("/api/status")["pid"])
        client.post("/api/stop", timeout_s=10)
    except NotRunningError:
        raise
    except RefusedError:
        if holder is None or holder.pid is None:
            raise
        # It holds the lock but does not listen: starting, stopping already, or stuck.
        pid = holder.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if not wait_for_exit(pid, timeout):
        raise RefusedError(f"pid {pid} has not ended within {timeout:g} s; `kill -9 {pid}` ends it at once")
    say("stopped")


def reload(home: HomeOption = None, json: JsonOption = False) -> None:
    """Take up changed settings while everything goes on. What is wrong is told, and then nothing changes.

    \b
    Example:
      mlx-supervisor reload
    """
    done = supervisor_of(home).post("/api/reload", timeout_s=RELOAD_S)
    if json:
        say_json(done)
        return
    said = False
    for what, names in (
        ("new", done["added"]),
        ("removed, each ends when it has finished", done["removed"]),
        ("changed", [name for name in done["changed"] if name not in done["next_load"]]),
        ("changed, partly from the next load on (unload to have it now)", done["next_load"]),
        ("changed, but it counts from the next start on", done["next_start"]),
    ):
        if names:
            said = True
            say(f"{what}: {', '.join(names)}")
    if not said:
        say("the models are as they were; all other settings count from now on")
    for problem in done["problems"]:
        say(problem)


def status(home: HomeOption = None, json: JsonOption = False) -> None:
    """Tell whether a supervisor runs, where it serves and what is loaded. Exits with 1 if none runs.

    \b
    Example:
      mlx-supervisor status
    """
    try:
        client = supervisor_of(home)
        facts = client.get("/api/status")
    except NotRunningError:
        if not json:
            raise
        say_json({"running": False, "home": str(chosen_home(home))})
        raise typer.Exit(1) from None
    workers = client.get("/api/engine")["workers"]
    if json:
        say_json({"running": True, **facts, "workers": workers})
        return
    up = format_duration(max(0.0, time.time() - facts["started_at"]))
    loaded = ", ".join(f"{worker['id']} ({worker['state']})" for worker in workers)
    say(f"serving on {facts['url']}/v1 for {up}, pid {facts['pid']}, version {facts['version']}")
    say(f"models: {loaded or 'none loaded'}")
    say(f"home:   {facts['home']}")
    say(f"log:    {facts['log']}")
    if lost := facts.get("lost_log_lines"):
        say(f"{lost} log lines are lost: the disk was full, or the folder can't be written")
    if facts["version"] != __version__:
        say(
            f"this is version {__version__}, another one runs; to switch: "
            "mlx-supervisor stop, then mlx-supervisor start"
        )

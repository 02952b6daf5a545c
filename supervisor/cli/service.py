"""The service: installed once, always there."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from shared import __version__
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, JsonOption, chosen_home
from supervisor.cli.terminal import clean, say, say_json

if TYPE_CHECKING:
    from supervisor.system.job import Job, ManagerName
    from supervisor.system.service import Running, Service, Status


class ManagerChoice(StrEnum):
    """Who starts the service."""

    LAUNCHD = "launchd"
    SYSTEMD = "systemd"


app = typer.Typer(
    help="Have the supervisor started at login, and again when it crashes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ManagerOption = Annotated[
    ManagerChoice | None,
    typer.Option("--manager", help="Else what this system has.", show_default=False, hidden=True),
]
HostOption = Annotated[
    str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]", show_default=False)
]
PortOption = Annotated[int | None, typer.Option(help="TCP port. [default: 8080]", show_default=False)]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings; else config.toml in the state folder.", show_default=False),
]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Allow a --host that other machines can reach.")
]


@app.command()
def install(
    home: HomeOption = None,
    host: HostOption = None,
    port: PortOption = None,
    config: ConfigOption = None,
    insecure: InsecureOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; do nothing.")] = False,
    manager: ManagerOption = None,
) -> None:
    """Install the service with what is set here and now, and start it. Again after a change or an upgrade.

    \b
    Example:
      mlx-supervisor service install --port 8080 --dry-run
    """
    from supervisor.settings import SettingsError, load_settings
    from supervisor.system.paths import ProgramError, program
    from supervisor.system.service import new_job

    with _told():
        service = _service(manager)
        folder = chosen_home(home)
        chosen = None if config is None else Path(os.path.abspath(config.expanduser()))
        options = _options(host, port, chosen, insecure)
        try:
            job, found = new_job(program(), service.manager.name, folder, options, os.environ)
            settings = load_settings(
                chosen or folder / "config.toml",
                environ=job.environment,
                flags=_flags(host, port, insecure),
                required=chosen is not None,
            )
        except (ProgramError, SettingsError) as error:
            raise RefusedError(str(error)) from None
        if dry_run:
            _say_plan(service, job)
        obstacles = service.obstacles(job, settings.server)
        if obstacles:
            raise RefusedError("\n".join(obstacles))
        for name in found.secrets:
            say(f"note: {name} holds a secret and was not written into the service")
        for note in service.manager.notes():
            say(f"note: {note}")
        if not dry_run:
            _say_serving(service.install(job))


@app.command()
def uninstall(manager: ManagerOption = None) -> None:
    """Stop the service and remove it. Models, settings and history stay.

    \b
    Example:
      mlx-supervisor service uninstall
    """
    with _told():
        service = _service(manager)
        was_there = service.uninstall()
    say(
        "the service is gone; models, settings and history are left" if was_there else "nothing was installed"
    )


@app.command()
def start(manager: ManagerOption = None) -> None:
    """Start the installed service, and wait until it serves.

    \b
    Example:
      mlx-supervisor service start
    """
    with _told():
        _say_serving(_service(manager).start())


@app.command()
def stop(manager: ManagerOption = None) -> None:
    """Stop the service until the next login, or until it is started. Open answers get their time.

    \b
    Example:
      mlx-supervisor service stop
    """
    with _told():
        _service(manager).stop()
    say("stopped; it starts again at the next login")


@app.command()
def restart(manager: ManagerOption = None) -> None:
    """Stop the service and start what is installed now, as after an upgrade.

    \b
    Example:
      mlx-supervisor service restart
    """
    with _told():
        _say_serving(_service(manager).restart())


@app.command()
def status(home: HomeOption = None, json: JsonOption = False, manager: ManagerOption = None) -> None:
    """Tell how the service is, and what to do if something is odd. Exits with 1 unless it serves.

    \b
    Example:
      mlx-supervisor service status
    """
    from supervisor.system.paths import ProgramError, program

    with _told():
        try:
            ours = program()
        except ProgramError:
            ours = (sys.executable,)
        told = _service(manager).status(chosen_home(home), ours)
    if json:
        import msgspec

        say_json(msgspec.to_builtins(told))
    else:
        _say_status(told)
    if not told.serving:
        raise typer.Exit(1)


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written next.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to begin with.")] = 20,
    home: HomeOption = None,
    manager: ManagerOption = None,
) -> None:
    """Show what the service logged: events, refusals to start, crashes.

    \b
    Example:
      mlx-supervisor service logs -f
    """
    from supervisor.system.job import LOG_NAME
    from supervisor.system.tail import Tail

    with _told():
        job = _service(manager).manager.read() if home is None else None
    folder = (job.home if job else chosen_home(home)) / "logs"
    tail = Tail([folder / LOG_NAME, folder / "supervisor.log"])
    found = False
    for name, line in tail.last(lines):
        found = True
        sys.stdout.write(f"{name}  {clean(line)}\n")
    if not found and not follow:
        raise RefusedError(f"there is no log of a service in {folder}")
    if follow:
        try:
            for name, line in tail.follow():
                sys.stdout.write(f"{name}  {clean(line)}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    home: HomeOption = None,
    host: HostOption = None,
    port: PortOption = None,
    config: ConfigOption = None,
    insecure: InsecureOption = False,
    manager: ManagerOption = None,
) -> NoReturn:
    """What launchd and systemd run: `start`, with refusals told in the manager's terms.

    \b
    Example:
      mlx-supervisor service run --manager launchd
    """
    from supervisor.settings import StartOptions
    from supervisor.system.launchd import LABEL
    from supervisor.system.managed import Managed
    from supervisor.system.service import manager_of

    with _told():
        # launchd names the service that it starts; only here, for a terminal has a name as well.
        known = manager_of(_name(manager), label=os.environ.get("XPC_SERVICE_NAME") or LABEL)
    managed = Managed(known.name, chosen_home(home))
    flags = _flags(host, port, insecure)
    flags |= managed.prepare(known, config, os.environ, flags)
    options = StartOptions(home=chosen_home(home), config=config, flags=flags)

    from supervisor import server  # the largest import, and the likeliest to fail in a broken installation

    def begin() -> int:
        if context.args:
            # A service file of another version. As wrong usage it would be tried again for ever.
            raise server.Refused(
                f"the service file has options that this version ({__version__}) does not know: "
                f"{' '.join(context.args)}; write it anew with: mlx-supervisor service install"
            )
        return server.run(options)

    sys.exit(managed.run(begin, server.Refused))


def _service(manager: ManagerChoice | None) -> "Service":
    from supervisor.system.service import Service, manager_of

    return Service(manager_of(_name(manager)), probe)


def _name(manager: ManagerChoice | None) -> "ManagerName | None":
    match manager:
        case ManagerChoice.LAUNCHD:
            return "launchd"
        case ManagerChoice.SYSTEMD:
            return "systemd"
        case None:
            return None


def probe(home: Path) -> "Running | None":
    """The supervisor that serves with the state folder `home`."""
    from supervisor.cli.client import Client
    from supervisor.system.service import Running

    try:
        facts = Client.of(home).get("/api/status")
        # An older version that still runs may tell less.
        lost = int(facts.get("lost_log_lines", 0))
        return Running(int(facts["pid"]), str(facts["version"]), str(facts["url"]), lost)
    except NotRunningError:
        return None
    except RefusedError:
        return None  # it starts, or stops, or hangs: it does not serve


def _options(host: str | None, port: int | None, config: Path | None, insecure: bool) -> list[str]:
    pairs = (("--host", host), ("--port", port), ("--config", config))
    options = [text for name, value in pairs if value is not None for text in (name, str(value))]
    return [*options, "--insecure"] if insecure else options


def _flags(host: str | None, port: int | None, insecure: bool) -> dict[str, object]:
    flags: dict[str, object] = {"server.insecure": True} if insecure else {}
    if host is not None:
        flags["server.host"] = host
    if port is not None:
        flags["server.port"] = port
    return flags


@contextmanager
def _told() -> Iterator[None]:
    from supervisor.system.commands import ServiceError

    try:
        yield
    except ServiceError as error:
        raise RefusedError(str(error)) from None


def _say_plan(service: "Service", job: "Job") -> None:
    known = service.manager
    written = "is already there" if service.is_current(job) else "would be written"
    say(f"{known.file} {written}:\n")
    say(known.render(job).decode())
    say("then:")
    for command in known.commands("start"):
        say(f"  {command}")


def _say_serving(running: "Running") -> None:
    say(f"serving on {running.url}/v1, pid {running.pid}, version {running.version}")
    if running.version != __version__:
        say("another version is installed; to switch: mlx-supervisor service restart")


def _say_status(told: "Status") -> None:
    how = "serves" if told.serving else told.phase
    pid = f", pid {told.pid}" if told.pid else ""
    rows = [("service", f"{how} ({told.manager}{pid})" if told.installed else "not installed")]
    if told.serving:
        rows += [("url", f"{told.url}/v1"), ("version", f"{told.version}")]
    if told.installed:
        rows += [("program", f"{told.program}"), ("file", told.file), ("home", told.home), ("log", told.log)]
    for name, value in rows:
        say(f"{name + ':':9}{value}")
    for problem in told.problems:
        say(f"problem: {problem}")
    for note in told.notes:
        say(f"note:    {note}")

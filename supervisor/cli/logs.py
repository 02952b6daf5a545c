"""What happened: the supervisor's log, or what one model's workers said."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from supervisor.cli.errors import RefusedError
from supervisor.cli.options import HomeOption, chosen_home
from supervisor.cli.terminal import clean


def logs(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Of this model's workers; else of the supervisor."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written next.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to begin with.")] = 20,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Everything from then on: 90s, 10m, 2h ago, or a time such as 2026-03-01T09:30.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Show the log of the supervisor, or of one model's workers. Times are in UTC.

    What launchd or systemd caught beside it (refused starts, crashes) is in `service logs`.

    \b
    Example:
      mlx-supervisor logs smollm2-135m -f --since 10m
    """
    from supervisor.system.tail import Tail

    folder = chosen_home(home)
    path = folder / "logs" / "supervisor.log" if model is None else _worker_log(folder, model)
    if not path.exists() and not follow:
        raise RefusedError(f"there is no log yet: {path}")
    tail = Tail([path])
    for _, line in tail.last(lines) if since is None else tail.since(_moment(since)):
        sys.stdout.write(f"{clean(line)}\n")
    if follow:
        sys.stdout.flush()
        try:
            for _, line in tail.follow():
                sys.stdout.write(f"{clean(line)}\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _worker_log(folder: Path, model: str) -> Path:
    """The log of the model's workers, also when it is meant by an alias. Raises RefusedError."""
    import os

    from supervisor.home import Home, HomeError
    from supervisor.settings import SettingsError, load_settings

    try:
        home = Home.find(folder)
    except HomeError as error:
        raise RefusedError(str(error)) from None
    if not home.worker_log(model).exists():
        try:
            models = load_settings(home.config, environ=os.environ).models
        except SettingsError:
            models = {}  # a broken configuration is no reason to hide a log
        model = next((id_ for id_, settings in models.items() if model in settings.aliases), model)
    path = home.worker_log(model)
    if not path.exists():
        import difflib

        known = [file.stem.removeprefix("worker-") for file in sorted(home.logs.glob("worker-*.log"))]
        near = difflib.get_close_matches(path.stem.removeprefix("worker-"), known, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(known)}" if known else ""
        raise RefusedError(f"no worker of {model} has written a log in {home.logs}{hint}")
    return path


def _moment(since: str) -> str:
    """The timestamp that `since` means, in UTC as the logs write it. Raises RefusedError."""
    import time
    from datetime import UTC, datetime

    from shared.sizes import parse_duration
    from supervisor.telemetry.lines import timestamp

    try:
        ago = parse_duration(since)
    except ValueError:
        pass
    else:
        return timestamp(max(0.0, time.time() - ago))
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise RefusedError(
            f"--since {since}: write how long ago, like 90s, 10m or 2h, or a time like 2026-03-01T09:30"
        ) from None
    # The logs are in UTC; a time that says no zone is taken as it is read there.
    return timestamp(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())

"""The settings: a first file, a check, what counts and why."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, JsonOption, chosen_home, supervisor_of
from supervisor.cli.terminal import say, say_json

if TYPE_CHECKING:
    from supervisor.settings import Settings

app = typer.Typer(
    help="Write, check and show the settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings; else config.toml in the state folder.", show_default=False),
]


@app.command()
def init(
    home: HomeOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a config.toml that shows every setting and changes none.

    \b
    Example:
      mlx-supervisor config init
    """
    from supervisor.home import Home, HomeError
    from supervisor.settings.template import commented

    try:
        target = Home.open(chosen_home(home)).config
    except HomeError as error:
        raise RefusedError(str(error)) from None
    try:
        with open(
            target, "w" if force else "x", encoding="utf-8", opener=_owner_only
        ) as file:  # Path.open has no opener
            file.write(commented())
    except FileExistsError:
        raise RefusedError(f"{target} is there already; --force replaces it") from None
    except OSError as error:
        raise RefusedError(f"{target} can't be written: {error.strerror}") from None
    say(f"wrote {target}")


@app.command()
def check(home: HomeOption = None, config: ConfigOption = None) -> None:
    """Read the settings as the next start would, and tell everything that is wrong.

    \b
    Example:
      mlx-supervisor config check
    """
    settings, path = _read(home, config)
    where = str(path) if path.exists() else f"no {path}, so defaults"
    number = len(settings.models)
    models = f", {number} model{'s' if number != 1 else ''} named" if number else ""
    amiss = _looked_over(home, settings)
    say(f"fine: {where}{models}")
    for sentence in amiss:
        say(sentence)


@app.command()
def show(
    home: HomeOption = None,
    config: ConfigOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Tell of each value where it comes from.")] = False,
    json: JsonOption = False,
) -> None:
    """Show every setting: of the running supervisor if there is one, else as the next start would read them.

    \b
    Example:
      mlx-supervisor config show --origin
    """
    import msgspec

    from supervisor.settings.shown import ShownValue, as_toml, shown_values

    running: Any = None
    if config is None:
        with contextlib.suppress(NotRunningError):
            running = supervisor_of(home).get("/api/config")["values"]

    values = msgspec.convert(running, list[ShownValue]) if running else shown_values(_read(home, config)[0])
    if json:
        say_json(msgspec.to_builtins(values))
        return
    say(as_toml(values, origins=origin).rstrip("\n"))


@app.command()
def path(home: HomeOption = None) -> None:
    """Print where config.toml is, or would be.

    \b
    Example:
      $EDITOR "$(mlx-supervisor config path)"
    """
    say(str(chosen_home(home) / "config.toml"))


def _read(home: Path | None, config: Path | None) -> "tuple[Settings, Path]":
    from supervisor.settings import SettingsError, load_settings

    path = config or chosen_home(home) / "config.toml"
    try:
        return load_settings(path, environ=os.environ, required=config is not None), path
    except SettingsError as error:
        raise RefusedError(str(error)) from None


def _looked_over(home: Path | None, settings: "Settings") -> list[str]:
    """What of the settings does not go with the models that are there, but is no reason not to start.

    Raises RefusedError for what is one.
    """
    import asyncio

    from supervisor.catalog.catalog import Catalog
    from supervisor.catalog.machine import detect
    from supervisor.cli.looking import recalled
    from supervisor.home import Home, HomeError, NoHomeError
    from supervisor.workers.books import Books

    try:
        found = Home.find(chosen_home(home))
    except NoHomeError:
        return []
    except HomeError as error:
        raise RefusedError(str(error)) from None
    catalog = Catalog(found, settings)
    machine = detect()
    books = Books(settings.memory, machine, asyncio.run(recalled(found, machine)))
    entries = catalog.entries()
    if (reason := books.pinned_too_many(settings, entries)) is not None:
        raise RefusedError(reason)
    large = books.too_large(entries)
    return [*catalog.amiss(), *([books.too_little(large)] if large else [])]


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

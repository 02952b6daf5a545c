"""The verbs, put together. Only the module of the verb that was typed is imported."""

import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from shared import __version__
from supervisor.cli.errors import RefusedError
from supervisor.cli.terminal import clean
from supervisor.cli.values import read_without_pydantic

_HELP = """Several language models behind one port, each in a process of its own.

\b
  mlx-supervisor start          serve on http://127.0.0.1:8080
  mlx-supervisor chat           talk to a model in this terminal
  mlx-supervisor VERB --help    what a verb does, with an example
"""
_SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}


class Verb(NamedTuple):
    """Where a verb is, and what the list of commands says of it."""

    module: str
    help: str
    function: str = ""
    """Its function in the module; else the verb's own name. The function is `app` where verbs follow it."""
    settings: dict[str, Any] | None = None


# What `run` runs belongs to it, whether it looks like an option or not.
_FOLLOWED: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
VERBS: Final = {
    "start": Verb("serving", "Serve the models of this machine until Ctrl-C."),
    "stop": Verb("serving", "Stop the supervisor."),
    "status": Verb("serving", "Tell whether a supervisor runs, and where it serves."),
    "reload": Verb("serving", "Take up changed settings while everything goes on."),
    "ps": Verb("models", "Show the models that are loaded."),
    "top": Verb("top", "Watch the models, their memory, and the requests."),
    "list": Verb("models", "Show the models on this machine.", "list_"),
    "load": Verb("models", "Load a model and wait until it is ready."),
    "unload": Verb("models", "Unload a model."),
    "fit": Verb("fit", "Tell whether a model fits into memory."),
    "pull": Verb("pulling", "Download a model from the Hugging Face hub."),
    "import": Verb("importing", "Import a GGUF file as a model.", "import_"),
    "info": Verb("storage", "Show all that is known of one model."),
    "rm": Verb("storage", "Remove a model from the disk."),
    "gc": Verb("storage", "Clean up what broke off and what is of no use."),
    "chat": Verb("chat", "Talk to a model."),
    "quickstart": Verb("quickstart", "Print what to paste into a program or an agent."),
    "doctor": Verb("doctor", "Look at everything, try a worker, say what to mend."),
    "logs": Verb("logs", "Show the log of the supervisor or of a model."),
    "run": Verb("leasing", "Run a command with the machine for itself.", settings=_FOLLOWED),
    "config": Verb("config", "Write, check and show the settings.", "app"),
    "service": Verb("service", "Have it started at login, and after a crash.", "app"),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-supervisor {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


class _Verbs(MutableMapping[str, Any]):
    """The commands by name. Each is made when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, VERBS[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _command(name: str, verb: Verb) -> Any:
    found = getattr(import_module(f"supervisor.cli.{verb.module}"), verb.function or name)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(name, context_settings=verb.settings)(found)
        command = typer.main.get_command(alone)
    read_without_pydantic(command, _SETTINGS)
    return command


class _Group(TyperGroup):
    """All verbs, of which `--help` imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def command() -> Any:
    """The whole program, as something to call with arguments."""
    app = typer.Typer(
        name="mlx-supervisor",
        cls=_Group,
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
    )
    app.callback()(_common)
    group: Any = typer.main.get_command(app)
    read_without_pydantic(group, _SETTINGS)
    group.commands = _Verbs()
    return group


def run() -> int:
    """Run the verb that `sys.argv` asks for. Returns the exit code; usage errors exit by themselves."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode gets question marks, not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        command()(prog_name="mlx-supervisor")
    except RefusedError as refused:
        sys.stderr.write(f"mlx-supervisor: {clean(str(refused))}\n")
        return 1
    return 0

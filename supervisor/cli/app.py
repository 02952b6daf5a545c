"""The verbs, put together."""

import sys
from typing import Annotated

import typer

from shared import __version__
from supervisor.cli import (
    chat,
    config,
    doctor,
    fit,
    importing,
    leasing,
    logs,
    models,
    pulling,
    quickstart,
    service,
    serving,
    storage,
    top,
)
from supervisor.cli.errors import RefusedError
from supervisor.cli.terminal import clean
from supervisor.cli.values import read_without_pydantic

_HELP = """Several language models behind one port, each in a process of its own.

\b
  mlx-supervisor start          serve on http://127.0.0.1:8080
  mlx-supervisor chat           talk to a model in this terminal
  mlx-supervisor VERB --help    what a verb does, with an example
"""

app = typer.Typer(
    name="mlx-supervisor",
    help=_HELP,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-supervisor {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


for _verb in (
    serving.start,
    serving.stop,
    serving.status,
    serving.reload,
    models.ps,
    top.top,
    models.list_,
    models.load,
    models.unload,
    fit.fit,
    pulling.pull,
    importing.import_,
    storage.info,
    storage.rm,
    storage.gc,
    chat.chat,
    quickstart.quickstart,
    doctor.doctor,
    logs.logs,
):
    app.command(_verb.__name__.rstrip("_"))(_verb)
# What follows the command belongs to it, whether it looks like an option or not.
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(
    leasing.run
)
app.add_typer(config.app, name="config")
app.add_typer(service.app, name="service")


def run() -> int:
    """Run the verb that `sys.argv` asks for. Returns the exit code; usage errors exit by themselves."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode gets question marks, not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    command = typer.main.get_command(app)
    read_without_pydantic(command)
    try:
        command(prog_name=app.info.name)
    except RefusedError as refused:
        sys.stderr.write(f"mlx-supervisor: {clean(str(refused))}\n")
        return 1
    return 0

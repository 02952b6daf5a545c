"""Options that many verbs share.

What only a running verb needs is imported when it runs: `--help` waits for none of it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supervisor.cli.errors import RefusedError

if TYPE_CHECKING:
    from supervisor.cli.client import Client

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="State folder; else MLX_SUPERVISOR_HOME, else ~/.mlx-supervisor.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def chosen_home(option: Path | None) -> Path:
    """The state folder that the option, the environment or the default names. Raises RefusedError."""
    from supervisor.home import HomeError, home_path

    try:
        return home_path(option, os.environ)
    except HomeError as error:
        raise RefusedError(str(error)) from None


def supervisor_of(home: Path | None) -> "Client":
    """The running supervisor that the `--home` option means. Raises RefusedError when there is none."""
    from supervisor.cli.client import Client

    return Client.of(chosen_home(home))


def complete_model(incomplete: str) -> list[str]:
    """Model ids and aliases that begin like `incomplete`, for the shell; none when no supervisor runs."""
    try:
        models = supervisor_of(None).get("/api/models")["models"]
    except RefusedError:
        return []
    names = sorted(name for model in models for name in (model["id"], *model["aliases"]))
    return [name for name in names if name.startswith(incomplete)]

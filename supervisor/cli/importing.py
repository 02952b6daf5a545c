"""Bring a model file into the state folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.sizes import format_size
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, chosen_home, supervisor_of
from supervisor.cli.terminal import say

if TYPE_CHECKING:
    from shared.importing import ImportProgress


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="The GGUF file; it is left as it is.")],
    model_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Model id; else the file's name.", show_default=False),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Import a GGUF file as a model. The same file under another id is another model.

    \b
    Example:
      mlx-supervisor import Qwen3-0.6B-Q8_0.gguf --id qwen3-0.6b
    """
    import asyncio

    from supervisor.catalog.importing import ModelImportError, import_model
    from supervisor.home import Home, HomeError

    path = chosen_home(home)
    try:
        imported = asyncio.run(import_model(file, Home.open(path), model_id=model_id, progress=_show))
    except (HomeError, ModelImportError) as error:
        raise RefusedError(str(error)) from None
    finally:
        _show(None)
    say(f"{imported.id}: {imported.architecture}, {format_size(imported.weights_bytes)}")
    try:
        supervisor_of(home).post("/api/catalog/refresh", timeout_s=30)
    except NotRunningError:
        return  # the next one to start will find it


def _show(progress: "ImportProgress | None") -> None:
    """Draw the progress over itself on a terminal; None wipes it away. A pipe gets nothing."""
    if not sys.stderr.isatty():
        return
    text = ""
    if progress is not None and progress.total:
        text = f"{progress.phase} {progress.done * 100 // progress.total} % of {format_size(progress.total)}"
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()

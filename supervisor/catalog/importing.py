"""Importing a GGUF file: the worker's importer runs as a process of its own, and we listen.

The supervisor never imports mlx or numpy, and a damaged file can bring down nothing but the importer.
"""

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared.importing import PARTIAL_PREFIX, ImportEvent, ImportFailed, ImportProgress, decode_event
from supervisor.catalog import helper
from supervisor.catalog.helper import Helper, HelperError, helper_environment
from supervisor.home import Home

# -P: what lies in the current folder is none of our program.
IMPORTER: Final = (sys.executable, "-P", "-m", "worker.gguf")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_MAX_ID_CHARACTERS: Final = 96


class ModelImportError(Exception):
    """Raised when a file was not imported; the message is a sentence for people."""


class ImportedModel(msgspec.Struct, frozen=True):
    """A model that is now in our own folder."""

    id: str
    directory: Path
    architecture: str
    weights_bytes: int


def default_id(file: Path) -> str:
    """The id for a file of this name: `Qwen3-0.6B-Q8_0.gguf` -> `qwen3-0.6b-q8_0`."""
    stem = file.name[: -len(".gguf")] if file.name.lower().endswith(".gguf") else file.name
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:_MAX_ID_CHARACTERS] or "model"


def check_id(model_id: str) -> None:
    """Raises ModelImportError unless `model_id` can name a model that is imported."""
    if not _ID.fullmatch(model_id) or len(model_id) > _MAX_ID_CHARACTERS:
        raise ModelImportError(
            f"{model_id[:_MAX_ID_CHARACTERS]!r} can't be a model id: write NAME or ORG/NAME with letters, "
            f"digits, '.', '_' and '-', beginning with a letter or digit, at most {_MAX_ID_CHARACTERS} in all"
        )


async def import_model(
    file: Path,
    home: Home,
    *,
    model_id: str | None = None,
    progress: Callable[[ImportProgress], None] = lambda told: None,
    command: Sequence[str] = IMPORTER,
    environ: Mapping[str, str] = os.environ,
) -> ImportedModel:
    """Import the GGUF `file` into the models folder as `model_id`, or as an id made of its name.

    Raises ModelImportError. When it fails or is cancelled, the importer is gone and nothing is left.
    """
    model_id = default_id(file) if model_id is None else model_id
    check_id(model_id)
    folder = home.models / model_id
    _check_free(home.models, folder, model_id)
    importer = Helper(
        "importer",
        _command_line(command, file, folder),
        helper_environment(environ),
        decode_event,
        silence_s=helper.SILENCE_S,
        grace_s=helper.GRACE_S,
    )

    def told(event: ImportEvent) -> None:
        if isinstance(event, ImportProgress):
            progress(event)

    try:
        ended = await importer.run(told)
    except HelperError as error:
        raise ModelImportError(str(error)) from error
    finally:
        if importer.pid is not None and importer.returncode != 0:
            await asyncio.to_thread(_remove_partial, home.models, folder, importer.pid)
    last = ended.last
    if isinstance(last, ImportFailed):
        raise ModelImportError(last.message)
    if ended.returncode != 0 or last is None or isinstance(last, ImportProgress):
        raise ModelImportError(f"{file.name}: {ended.describe('importer')}")
    return ImportedModel(model_id, folder, last.architecture, last.weights_bytes)


def _command_line(command: Sequence[str], file: Path, folder: Path) -> list[str]:
    # Absolute, so that a name that begins with a dash is no option.
    return [*command, str(file.absolute()), "--out", str(folder), "--lifeline"]


def _check_free(models: Path, folder: Path, model_id: str) -> None:
    if os.path.lexists(folder):
        raise ModelImportError(f"there is a model {model_id!r} already; give another id")
    organisation = folder.parent
    if organisation != models and (organisation / "config.json").exists():
        raise ModelImportError(f"{organisation.name!r} is a model, so there can't be a model {model_id!r}")


def _remove_partial(models: Path, folder: Path, pid: int) -> None:
    """What the importer removes itself unless it was killed."""
    partial = folder.parent / f"{PARTIAL_PREFIX}{folder.name}-{pid}"
    if partial.exists():
        shutil.rmtree(partial, ignore_errors=True)
        if folder.parent != models:
            with contextlib.suppress(OSError):
                # Only when it is empty: the organisation's folder was made for this model.
                folder.parent.rmdir()

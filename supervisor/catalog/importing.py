"""Importing a GGUF file: the worker's importer runs as a process of its own, and we listen.

The supervisor never imports mlx or numpy, and a damaged file can bring down nothing but the importer.
"""

import asyncio
import contextlib
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared.importing import PARTIAL_PREFIX, ImportEvent, ImportFailed, ImportProgress, decode_event
from supervisor.home import Home

# -P: what lies in the current folder is none of our program.
IMPORTER: Final = (sys.executable, "-P", "-m", "worker.gguf")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_MAX_ID_CHARACTERS: Final = 96
_SILENCE_S: Final = 120.0
"""An importer that tells nothing for so long hangs: every few megabytes are told."""
_GRACE_S: Final = 3.0
_STDERR_LINES: Final = 5
_LINE_BYTES: Final = 64 << 10
_PASSED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


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
    try:
        process = await asyncio.create_subprocess_exec(
            *_command_line(command, file, folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: environ[name] for name in _PASSED if name in environ},
            limit=_LINE_BYTES,
        )
    except OSError as error:
        raise ModelImportError(f"the importer could not be started: {error.strerror}") from error
    try:
        last, complaints = await _listen(process, progress)
    finally:
        await _end(process)
        if process.returncode != 0:
            await asyncio.to_thread(_remove_partial, home.models, folder, process.pid)
    if isinstance(last, ImportFailed):
        raise ModelImportError(last.message)
    if process.returncode != 0 or last is None or isinstance(last, ImportProgress):
        raise ModelImportError(_death(file, process.returncode, complaints))
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


async def _listen(
    process: asyncio.subprocess.Process, progress: Callable[[ImportProgress], None]
) -> tuple[ImportEvent | None, list[str]]:
    """The last event and the last lines of stderr, once the process has closed both."""
    assert process.stdout is not None and process.stderr is not None
    complaints = asyncio.ensure_future(_last_lines(process.stderr))
    last: ImportEvent | None = None
    try:
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), _SILENCE_S)
                if not line:
                    return last, await asyncio.wait_for(complaints, _SILENCE_S)
                last = decode_event(line)
            except TimeoutError:
                raise ModelImportError(f"the importer hung: it told nothing for {_SILENCE_S:.0f} s") from None
            except (msgspec.MsgspecError, ValueError) as error:
                raise ModelImportError(f"the importer can't be understood: {error}") from error
            if isinstance(last, ImportProgress):
                progress(last)
    finally:
        complaints.cancel()
        await asyncio.wait({complaints})


async def _last_lines(stream: asyncio.StreamReader) -> list[str]:
    kept: deque[str] = deque(maxlen=_STDERR_LINES)
    rest = b""
    while chunk := await stream.read(_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_LINE_BYTES:]
        kept.extend(line.decode("utf-8", "replace") for line in lines if line.strip())
    return [*kept, rest.decode("utf-8", "replace")] if rest.strip() else list(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """See the process gone: it is asked first, by its lifeline's end, and then killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(_drained(process), _GRACE_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await _drained(process)


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Wait for the end. Output that nobody reads would hold up asyncio's news of it."""
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(_LINE_BYTES):
            pass
    await process.wait()


def _remove_partial(models: Path, folder: Path, pid: int) -> None:
    """What the importer removes itself unless it was killed."""
    partial = folder.parent / f"{PARTIAL_PREFIX}{folder.name}-{pid}"
    if partial.exists():
        shutil.rmtree(partial, ignore_errors=True)
        if folder.parent != models:
            with contextlib.suppress(OSError):
                # Only when it is empty: the organisation's folder was made for this model.
                folder.parent.rmdir()


def _death(file: Path, returncode: int | None, complaints: list[str]) -> str:
    if returncode is not None and returncode < 0:
        how = f"the importer was ended by signal {-returncode}; it may have run out of memory"
    else:
        how = f"the importer ended with status {returncode}"
    return f"{file.name}: {how}" + (f". It said: {complaints[-1]}" if complaints else "")

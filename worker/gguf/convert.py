"""One import: read, check, write beside the target, rename.

A model folder appears complete or not at all.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import orjson

from shared import __version__
from shared.importing import PARTIAL_PREFIX, RECORD_NAME, Imported, ImportEvent, ImportProgress, ImportRecord
from shared.sizes import format_size
from worker.gguf.architecture import plan_import
from worker.gguf.errors import GgufError
from worker.gguf.header import Header, read_header
from worker.gguf.tokenizer import build_tokenizer
from worker.gguf.weights import quantization, write_weights

_CHUNK_BYTES: Final = 16 << 20
_STALE_S: Final = 60.0

Report = Callable[[ImportEvent], None]


def import_gguf(source: Path, folder: Path, report: Report) -> Imported:
    """Write the model in the GGUF file `source` into the new folder `folder`.

    Raises GgufError when the file can't be imported or the folder exists, OSError when reading or writing
    fails. In both cases nothing is left behind.
    """
    if folder.exists() or folder.is_symlink():
        raise GgufError(f"{folder} exists already")
    with _mapped(source) as data:
        header = read_header(data)
        plan = plan_import(header, data)
        context = plan.config["max_position_embeddings"]
        assert isinstance(context, int)
        tokenizer = build_tokenizer(header.metadata, vocabulary=plan.vocabulary, context=context)
        record = _record(source, data, header, report)

        config = dict(plan.config) | {
            key: tokenizer.generation[key]
            for key in ("bos_token_id", "eos_token_id")
            if key in tokenizer.generation
        }
        packed = quantization(plan.placements)
        if packed is not None:
            config |= {"quantization": packed, "quantization_config": packed}

        total = sum(placement.tensor.size_bytes for placement in plan.placements)
        with _appearing(folder, needed_bytes=total) as partial:
            size = write_weights(
                partial / "model.safetensors",
                plan.placements,
                data,
                lambda done: report(ImportProgress("weights", done, total)),
            )
            report(ImportProgress("tokenizer", 0, 1))
            _write_json(partial / "config.json", config)
            _write_json(partial / "generation_config.json", tokenizer.generation)
            _write_json(partial / "tokenizer_config.json", tokenizer.configuration)
            _write_json(partial / "tokenizer.json", tokenizer.tokenizer)
            _write_json(partial / RECORD_NAME, msgspec.to_builtins(record))
            report(ImportProgress("tokenizer", 1, 1))
    return Imported(directory=str(folder), architecture=str(plan.config["model_type"]), weights_bytes=size)


@contextlib.contextmanager
def _mapped(source: Path) -> Iterator[memoryview]:
    with source.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise GgufError("the file is empty")
        # Not closed: numpy's views of it may outlive this block. The process ends soon after.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _record(source: Path, data: memoryview, header: Header, report: Report) -> ImportRecord:
    digest = hashlib.sha256()
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        digest.update(chunk)
        report(ImportProgress("checksum", start + len(chunk), len(data)))
    types = Counter(tensor.type.name for tensor in header.tensors)
    return ImportRecord(
        file=source.name,
        size_bytes=len(data),
        sha256=digest.hexdigest(),
        tensor_types=dict(sorted(types.items())),
        importer=__version__,
        name=header.metadata.text("general.name"),
        license=header.metadata.text("general.license"),
    )


def _write_json(path: Path, value: object) -> None:
    with path.open("wb") as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _appearing(folder: Path, *, needed_bytes: int) -> Iterator[Path]:
    """A partial folder that becomes `folder` when the block ends well, and is removed when it does not."""
    parent = folder.parent
    made_parent = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise GgufError(
            f"the disk is too full: the model needs {format_size(needed_bytes)}, {format_size(free)} are free"
        )
    partial = parent / f"{PARTIAL_PREFIX}{folder.name}-{os.getpid()}"
    partial.mkdir()
    try:
        with _locked(partial):
            yield partial
            _sync_folder(partial)
            try:
                partial.rename(folder)
            except OSError as error:
                if folder.exists():
                    raise GgufError(f"{folder} exists already") from error
                raise
            _sync_folder(parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if made_parent:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Marks a partial folder as somebody's: the lock ends with the process, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    for partial in parent.glob(f"{PARTIAL_PREFIX}*"):
        with contextlib.suppress(OSError):
            # One that was made this moment may not be locked yet.
            if time.time() - partial.lstat().st_mtime < _STALE_S:
                continue
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial)
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

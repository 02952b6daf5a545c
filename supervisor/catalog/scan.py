"""What a model folder holds, and what is wrong with it, without loading anything.

Only sizes, headers and config.json are read: a folder of any size takes about a millisecond.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from shared.encoders import positions_before_text
from shared.limits import LENGTH_KEYS
from shared.sizes import format_size

_MAX_JSON_BYTES: Final = 32 << 20
"""More than any config or safetensors header of a real model has."""

_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt")
_INDEX: Final = "model.safetensors.index.json"


class ModelFolder(msgspec.Struct, frozen=True):
    """One model folder. `problem` is a sentence without paths; None where all that we look at is fine."""

    architecture: str | None = None
    """`model_type` of its config.json."""
    context: int | None = None
    """Longest text in tokens, as its config.json says."""
    weights_bytes: int = 0
    problem: str | None = None
    identity: str = ""
    """Equal for equal models, wherever they lie: told by config.json and the sizes of the weight files."""


class _BrokenError(Exception):
    """Raised inside a scan when something is wrong with the folder."""


class _Extent(msgspec.Struct):
    """The one field of a safetensors header's tensor that tells where the file must end."""

    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_decode_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_extent = msgspec.json.Decoder(_Extent).decode
_decode_index = msgspec.json.Decoder(_Index).decode
_decode_config = msgspec.json.Decoder(dict[str, object]).decode


class Scanner:
    """Scans folders, and remembers the result for each until a file in it changes."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Signature, ModelFolder]] = {}

    def scan(self, folder: Path) -> ModelFolder:
        """What is in `folder`. Never raises for what it finds there."""
        try:
            files = _files(folder)
        except FileNotFoundError:
            return ModelFolder(problem="its folder does not exist")
        except NotADirectoryError:
            return ModelFolder(problem="its source is a file, not a model folder")
        except OSError as error:
            return ModelFolder(problem=f"its folder can't be read: {error.strerror}")
        signature = tuple(
            sorted((name, status.st_mtime_ns, status.st_size) for name, status in files.items())
        )
        known = self._known.get(folder)
        if known is not None and known[0] == signature:
            return known[1]
        found = _examine(folder, files)
        self._known[folder] = (signature, found)
        return found

    def forget_except(self, folders: set[Path]) -> None:
        """Drop what is remembered of folders that are no longer in the catalog."""
        self._known = {folder: known for folder, known in self._known.items() if folder in folders}


_Signature = tuple[tuple[str, int, int], ...]
_Files = Mapping[str, os.stat_result]


def _files(folder: Path) -> _Files:
    """The regular files in `folder`, by name. Links that lead nowhere are not among them."""
    files = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                files[entry.name] = status
    return files


def _examine(folder: Path, files: _Files) -> ModelFolder:
    architecture: str | None = None
    context: int | None = None
    weights_bytes = 0
    identity = ""
    try:
        text, config = _config(folder, files)
        context = _context(config)
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or not model_type:
            raise _BrokenError("its config.json does not name an architecture (model_type)")
        architecture = model_type
        names = _weight_files(folder, files)
        identity = _identity(text, {name: files[name].st_size for name in names})
        for name in names:
            weights_bytes += _weights_in(folder / name, files[name].st_size)
        if not any(name in files for name in _TOKENIZERS):
            raise _BrokenError("it has no tokenizer files")
    except _BrokenError as problem:
        return ModelFolder(architecture, context, weights_bytes, str(problem), identity)
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        return ModelFolder(architecture, context, weights_bytes, reason, identity)
    return ModelFolder(architecture, context, weights_bytes, None, identity)


def _identity(config: bytes, sizes: Mapping[str, int]) -> str:
    import hashlib  # not before there is a model

    digest = hashlib.blake2b(config, digest_size=12)
    digest.update(repr(sorted(sizes.items())).encode())
    return digest.hexdigest()


def _config(folder: Path, files: _Files) -> tuple[bytes, dict[str, object]]:
    """config.json as it is and as an object."""
    if "config.json" not in files:
        if gguf := min((name for name in files if name.lower().endswith(".gguf")), default=None):
            raise _BrokenError(f"it holds a GGUF file, which must be imported: mlx-supervisor import {gguf}")
        raise _BrokenError("it has no config.json, so it is no model in MLX format")
    if files["config.json"].st_size > _MAX_JSON_BYTES:
        raise _BrokenError("its config.json is far too large")
    try:
        text = (folder / "config.json").read_bytes()
        return text, _decode_config(text)
    except (msgspec.MsgspecError, RecursionError):
        raise _BrokenError("its config.json is not a valid JSON object") from None


def _context(config: dict[str, object]) -> int | None:
    text = config.get("text_config")
    for fields in (text, config):
        if isinstance(fields, dict):
            for name in LENGTH_KEYS:
                length = fields.get(name)
                if isinstance(length, int) and not isinstance(length, bool) and length > 0:
                    return length - positions_before_text(fields)
    return None


def _weight_files(folder: Path, files: _Files) -> list[str]:
    """The weight files, as mlx-lm finds them, when all that the index names are there."""
    present = sorted(name for name in files if name.startswith("model") and name.endswith(".safetensors"))
    if _INDEX in files and files[_INDEX].st_size <= _MAX_JSON_BYTES:
        try:
            named = set(_decode_index((folder / _INDEX).read_bytes()).weight_map.values())
        except msgspec.MsgspecError:
            raise _BrokenError(f"its {_INDEX} is damaged") from None
        missing = sorted(named - set(present))
        if missing:
            raise _BrokenError(
                f"{len(missing)} of its {len(named)} weight files are missing, such as {missing[0]}"
            )
    if not present:
        raise _BrokenError("it has no weights (model*.safetensors)")
    return present


def _weights_in(path: Path, size_bytes: int) -> int:
    """Bytes of the tensors in a safetensors file, which must be all there.

    Source: the safetensors format: 8 bytes of length, a JSON header, the tensors.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or length > min(size_bytes - 8, _MAX_JSON_BYTES):
            raise _BrokenError(f"its {path.name} is damaged or incomplete")
        header = file.read(length)
    try:
        tensors = _decode_header(header)
        tensors.pop("__metadata__", None)
        end = max((_decode_extent(tensor).data_offsets[1] for tensor in tensors.values()), default=0)
    except msgspec.MsgspecError:
        raise _BrokenError(f"its {path.name} is damaged") from None
    there = size_bytes - 8 - length
    if there < end:
        raise _BrokenError(
            f"its {path.name} is incomplete: {format_size(there)} of {format_size(end)} are there"
        )
    return end

"""What a model folder holds, and what is wrong with it, without loading anything.

Only sizes, headers and small JSON files are read: a folder of any size takes about a millisecond, and
microseconds when nothing in it has changed.
"""

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from shared.encoders import ENCODERS, positions_before_text
from shared.launch import Sampling
from shared.limits import LENGTH_KEYS
from shared.model_files import GENERATION, THINKING_PAIRS, declares_embeddings, generation_defaults
from shared.sizes import format_size
from supervisor.catalog.engine import runs

_MAX_JSON_BYTES: Final = 32 << 20
"""More than any config or safetensors header of a real model has."""

_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt")
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")
_INDEX: Final = "model.safetensors.index.json"
_LOOKED_AT: Final = frozenset({"config.json", "tokenizer_config.json", GENERATION, _INDEX, *_TEMPLATES})
"""Beside the weights: files that may be changed where they are, without the folder's noticing."""
_SETTLED_NS: Final = 50_000_000
"""File systems tell time in ticks: what changed so lately may change again without showing it."""
_SNAPSHOTS: Final = f"{os.sep}snapshots{os.sep}"
_POOLING: Final = "1_Pooling"
_NEVER: Final = -1
_PLAIN_TYPES: Final = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


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
    quantization: str | None = None
    """As people say it: `4-bit`, `mxfp4`, `bf16`."""
    capabilities: tuple[str, ...] = ()
    """What a worker will most likely say that it can: `chat`, `tools`, `thinking`, `embeddings` and so on."""
    vision: bool = False
    """Whether it was made to see as well."""
    sampling: Sampling = Sampling()
    """What its generation_config.json says."""
    is_model: bool = True
    """False for a folder that holds something else, such as GGUF files."""
    changed_s: float = 0.0
    """When its config.json was written, in seconds since 1970."""


class _BrokenError(Exception):
    """Raised inside a scan when something is wrong with the folder."""


class _Extent(msgspec.Struct):
    """Of a tensor in a safetensors header, where it ends in the file, and its type."""

    data_offsets: tuple[int, int]
    dtype: str = ""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _TokenizerConfig(msgspec.Struct):
    chat_template: msgspec.Raw = msgspec.Raw(b"null")


_decode_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_extent = msgspec.json.Decoder(_Extent).decode
_decode_index = msgspec.json.Decoder(_Index).decode
_decode_config = msgspec.json.Decoder(dict[str, object]).decode
_decode_tokenizer = msgspec.json.Decoder(_TokenizerConfig).decode

_Stamp = tuple[int, int]
"""When a file was written last, and its size."""


class _Known(msgspec.Struct, frozen=True):
    folder_ns: int
    stamps: tuple[tuple[str, _Stamp], ...]
    """By path."""
    found: ModelFolder


class Scanner:
    """Scans folders, and remembers the result for each until a file in it changes."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def scan(self, folder: Path | str) -> ModelFolder:
        """What is in `folder`. Never raises for what it finds there."""
        path = str(folder)
        known = self._known.get(path)
        if known is not None and _is_unchanged(path, known):
            return known.found
        try:
            changed_ns = os.stat(path).st_mtime_ns
            files = _files(path)
        except FileNotFoundError:
            return ModelFolder(problem="its folder does not exist", is_model=False)
        except NotADirectoryError:
            return ModelFolder(problem="its source is a file, not a model folder")
        except OSError as error:
            return ModelFolder(problem=f"its folder can't be read: {error.strerror}")
        found = _examine(Path(path), files)
        if known is not None and known.found == found:
            found = known.found
        settled = time.time_ns() - changed_ns > _SETTLED_NS
        self._known[path] = _Known(changed_ns if settled else _NEVER, _stamps(path, files), found)
        return found

    def forget_except(self, folders: set[str]) -> None:
        """Drop what is remembered of folders that are no longer in the catalog."""
        self._known = {folder: known for folder, known in self._known.items() if folder in folders}


_Files = Mapping[str, os.stat_result]


def _is_unchanged(folder: str, known: _Known) -> bool:
    try:
        if os.stat(folder).st_mtime_ns != known.folder_ns:
            return False
        for path, stamp in known.stamps:
            status = os.stat(path)
            if (status.st_mtime_ns, status.st_size) != stamp:
                return False
    except OSError:
        return False
    return True


def _stamps(folder: str, files: _Files) -> tuple[tuple[str, _Stamp], ...]:
    """Of the files whose change the folder does not show."""
    if _SNAPSHOTS in folder:
        return ()  # links to blobs that nobody writes to
    return tuple(
        (os.path.join(folder, name), (status.st_mtime_ns, status.st_size))
        for name, status in files.items()
        if name in _LOOKED_AT or _is_weights(name)
    )


def _files(folder: str) -> _Files:
    """The regular files in `folder`, by name, and the folder that embedding models have. Links that lead
    nowhere are not among them."""
    files = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) or entry.name == _POOLING:
                files[entry.name] = status
    return files


def _is_weights(name: str) -> bool:
    """Whether mlx-lm would load it."""
    return name.startswith("model") and name.endswith(".safetensors")


def _examine(folder: Path, files: _Files) -> ModelFolder:
    if "config.json" not in files:
        return ModelFolder(problem=_without_config(files), is_model=False)
    found: dict[str, object] = {"changed_s": files["config.json"].st_mtime}
    try:
        text, config = _config(folder, files)
        found |= _described(folder, files, config)
        if not found["architecture"]:
            raise _BrokenError("its config.json does not name an architecture (model_type)")
        names = _weight_files(folder, files)
        found["identity"] = _identity(text, {name: files[name].st_size for name in names})
        total, types = 0, dict[str, int]()
        for name in names:
            found["weights_bytes"] = total = total + _weights_in(folder / name, files[name].st_size, types)
        if found["quantization"] is None and types:
            found["quantization"] = _PLAIN_TYPES.get(max(types, key=types.__getitem__))
        if not any(name in files for name in _TOKENIZERS):
            raise _BrokenError("it has no tokenizer files")
        if config.get("model_file") is not None:
            raise _BrokenError("it comes with code of its own (model_file), which is never run here")
        if not runs(str(found["architecture"])):
            raise _BrokenError(f"the installed mlx-lm can't run its architecture, {found['architecture']}")
    except _BrokenError as error:
        found["problem"] = str(error)
    except OSError as error:
        found["problem"] = f"it can't be read: {error.strerror}"
    return ModelFolder(**found)  # type: ignore[arg-type]  # names and types are as above


def _without_config(files: _Files) -> str:
    gguf = min((name for name in files if name.lower().endswith(".gguf")), default=None)
    if gguf is not None:
        return f"it holds a GGUF file, which must be imported: mlx-supervisor import {gguf}"
    return "it has no config.json, so it is no model in MLX format"


def _described(folder: Path, files: _Files, config: dict[str, object]) -> dict[str, object]:
    """What config.json and the tokenizer's files say, whatever is wrong with the weights."""
    model_type = config.get("model_type")
    return {
        "architecture": model_type if isinstance(model_type, str) and model_type else None,
        "context": _context(config),
        "quantization": _quantization(config),
        "vision": isinstance(config.get("vision_config"), dict),
        "capabilities": _capabilities(folder, files, config),
        "sampling": _sampling(folder, files),
    }


def _identity(config: bytes, sizes: Mapping[str, int]) -> str:
    import hashlib  # not before there is a model

    digest = hashlib.blake2b(config, digest_size=12)
    digest.update(repr(sorted(sizes.items())).encode())
    return digest.hexdigest()


def _config(folder: Path, files: _Files) -> tuple[bytes, dict[str, object]]:
    """config.json as it is and as an object."""
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


def _quantization(config: dict[str, object]) -> str | None:
    """How the weights are packed, as config.json says; None when it says nothing."""
    text = config.get("text_config")
    for fields in (config, text):
        for name in ("quantization", "quantization_config"):
            packed = fields.get(name) if isinstance(fields, dict) else None
            if not isinstance(packed, dict):
                continue
            for key in ("mode", "quant_method"):
                kind = packed.get(key)
                if isinstance(kind, str) and kind not in ("affine", ""):
                    bits = packed.get("bits")
                    return f"{bits}-bit {kind}" if isinstance(bits, int) and kind in ("awq", "gptq") else kind
            if isinstance(packed.get("bits"), int):
                return f"{packed['bits']}-bit"
    return None


def _capabilities(folder: Path, files: _Files, config: dict[str, object]) -> tuple[str, ...]:
    if config.get("model_type") in ENCODERS or declares_embeddings(folder, files, config):
        return ("embeddings",)
    template = _template(folder, files)
    if template is None:
        return ()
    can = {
        # Where the template knows nothing of tools, the worker tells the model in words.
        "tools": True,
        "structured_output": "tokenizer.json" in files,
        "thinking": any(end in template for _, end in THINKING_PAIRS),
    }
    return ("chat", *(name for name, able in can.items() if able))


def _sampling(folder: Path, files: _Files) -> Sampling:
    """As the worker reads it: from a file that is no object comes nothing."""
    if GENERATION not in files or files[GENERATION].st_size > _MAX_JSON_BYTES:
        return Sampling()
    try:
        return generation_defaults(_decode_config((folder / GENERATION).read_bytes()))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Sampling()


def _template(folder: Path, files: _Files) -> str | None:
    """The text of the chat template; None when there is none."""
    for name in _TEMPLATES:
        if name in files and files[name].st_size <= _MAX_JSON_BYTES:
            return (folder / name).read_text("utf-8", "replace")
    status = files.get("tokenizer_config.json")
    if status is None or status.st_size > _MAX_JSON_BYTES:
        return None
    try:
        template = bytes(_decode_tokenizer((folder / "tokenizer_config.json").read_bytes()).chat_template)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # As it is written in JSON: a text, or a list of named ones. The markers read the same in it.
    return None if template in (b"null", b'""', b"[]") else template.decode("utf-8", "replace")


def _weight_files(folder: Path, files: _Files) -> list[str]:
    """The weight files, as mlx-lm finds them, when all that the index names are there."""
    present = sorted(name for name in files if _is_weights(name))
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


def _weights_in(path: Path, size_bytes: int, types: dict[str, int]) -> int:
    """Bytes of the tensors in a safetensors file, which must be all there; `types` gets them by type.

    Source: the safetensors format: 8 bytes of length, a JSON header, the tensors.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or length > min(size_bytes - 8, _MAX_JSON_BYTES):
            raise _BrokenError(f"its {path.name} is damaged or incomplete")
        header = file.read(length)
    end = 0
    try:
        tensors = _decode_header(header)
        tensors.pop("__metadata__", None)
        for tensor in map(_decode_extent, tensors.values()):
            first, last = tensor.data_offsets
            end = max(end, last)
            types[tensor.dtype] = types.get(tensor.dtype, 0) + last - first
    except msgspec.MsgspecError:
        raise _BrokenError(f"its {path.name} is damaged") from None
    there = size_bytes - 8 - length
    if there < end:
        raise _BrokenError(
            f"its {path.name} is incomplete: {format_size(there)} of {format_size(end)} are there"
        )
    return end

"""The tensors of a model folder, read from its safetensors headers alone.

Source: the safetensors format: 8 bytes of length, a JSON header that names each tensor's dtype, shape and
place, then the tensors.
"""

import math
from pathlib import Path
from typing import Final

import msgspec

_MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""

_METADATA: Final = "__metadata__"


class WeightsError(Exception):
    """Raised when weight files can't be read or are damaged; the message is a sentence without paths."""


class Tensor(msgspec.Struct, frozen=True):
    """One tensor as it lies on disk."""

    name: str
    dtype: str
    """As the format spells it: `BF16`, `F32`, `U32`, `F8_E4M3`."""
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_decode_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entry = msgspec.json.Decoder(_Entry).decode


def read_tensors(folder: Path) -> list[Tensor]:
    """Every tensor of the files that mlx-lm loads, `model*.safetensors`, sorted by name.

    Raises WeightsError.
    """
    try:
        files = sorted(folder.glob("model*.safetensors"))
        tensors = [tensor for file in files for tensor in read_header(file)]
    except OSError as error:
        raise WeightsError(f"its weights can't be read: {error.strerror}") from None
    if not files:
        raise WeightsError("it has no weights (model*.safetensors)")
    # A name that is in two files counts once: the later file's tensor takes the earlier one's place.
    return sorted({tensor.name: tensor for tensor in tensors}.values(), key=lambda tensor: tensor.name)


def read_header(file: Path) -> list[Tensor]:
    """The tensors that one file's header names. Raises WeightsError, and OSError when it can't be read."""
    with file.open("rb") as source:
        size = int.from_bytes(source.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            raise WeightsError(f"its {file.name} is damaged")
        header = source.read(size)
    if len(header) < size:
        raise WeightsError(f"its {file.name} is damaged")
    try:
        entries = _decode_header(header)
        entries.pop(_METADATA, None)
        return [_tensor(name, _decode_entry(entry)) for name, entry in entries.items()]
    except (msgspec.MsgspecError, RecursionError):
        raise WeightsError(f"its {file.name} is damaged") from None


def _tensor(name: str, entry: _Entry) -> Tensor:
    begin, end = entry.data_offsets
    if not 0 <= begin <= end or any(size < 0 for size in entry.shape):
        raise msgspec.ValidationError(f"{name} lies nowhere")
    return Tensor(name, entry.dtype, entry.shape, end - begin)

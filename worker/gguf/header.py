"""A GGUF file's header: metadata, and where each tensor's bytes are.

Source: the GGUF specification, versions 2 and 3 (little-endian). Everything read from the file is checked
against the file's size before it is used: a hostile or cut file gives a GgufError, never more.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, prod
from typing import Final

from worker.gguf.errors import GgufError
from worker.gguf.types import TENSOR_TYPES, TensorType

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4
_MAX_ARRAY_DEPTH: Final = 4

Value = str | int | float | bool | list["Value"]


@dataclass(frozen=True)
class Tensor:
    """`shape` has the slowest dimension first, as in mlx; `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) // self.type.block_elements * self.type.block_bytes

    def bytes_in(self, data: memoryview) -> memoryview:
        """The tensor's bytes in `data`, the whole file."""
        return data[self.offset : self.offset + self.size_bytes]


@dataclass(frozen=True)
class Metadata:
    """The file's key-value pairs, read with the type that the reader needs."""

    values: dict[str, Value]

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise GgufError(f"the metadata field {key} is not a text")

    def integer(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise GgufError(f"the metadata field {key} is not a whole number")

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            return float(value)
        raise GgufError(f"the metadata field {key} is not a number")

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise GgufError(f"the metadata field {key} is not true or false")

    def texts(self, key: str) -> list[str]:
        """The list under `key`; empty when there is none."""
        value = self.values.get(key, [])
        if isinstance(value, list):
            found = [item for item in value if isinstance(item, str)]
            if len(found) == len(value):
                return found
        raise GgufError(f"the metadata field {key} is not a list of texts")

    def numbers(self, key: str) -> list[float]:
        """The list under `key`; empty when there is none."""
        value = self.values.get(key, [])
        if isinstance(value, list):
            found = [item for item in value if isinstance(item, int | float)]
            if len(found) == len(value):
                return found
        raise GgufError(f"the metadata field {key} is not a list of numbers")


@dataclass(frozen=True)
class Header:
    metadata: Metadata
    tensors: tuple[Tensor, ...]


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self._data):
            raise GgufError(_cut_off(f"inside its header, at {len(self._data)} bytes"))
        found = self._data[self.position : end]
        self.position = end
        return found

    def expect(self, count: int, least_bytes: int) -> None:
        """Refuse a count that the rest of the file can't hold, before anything of that size is made."""
        if count * least_bytes > len(self._data) - self.position:
            raise GgufError(_cut_off(f"inside its header, at {len(self._data)} bytes"))

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        raw = self.take(self.unsigned(8))
        # Some vocabularies hold tokens cut inside a character.
        return str(raw, "utf-8", "replace")


def _scalar(code: str) -> tuple[int, Callable[[memoryview], list[Value]]]:
    size = struct.calcsize(f"<{code}")

    def unpack(raw: memoryview) -> list[Value]:
        return list(struct.unpack(f"<{len(raw) // size}{code}", raw))

    return size, unpack


_SCALARS: Final = {number: _scalar(code) for number, code in enumerate("BbHhIif?")} | {
    number: _scalar(code) for number, code in ((10, "Q"), (11, "q"), (12, "d"))
}
_STRING: Final = 8
_ARRAY: Final = 9


def _value(reader: _Reader, kind: int, depth: int = 0) -> Value:
    if kind in _SCALARS:
        size, unpack = _SCALARS[kind]
        return unpack(reader.take(size))[0]
    if kind == _STRING:
        return reader.text()
    if kind == _ARRAY and depth < _MAX_ARRAY_DEPTH:
        item_kind, count = reader.unsigned(4), reader.unsigned(8)
        if item_kind in _SCALARS:
            size, unpack = _SCALARS[item_kind]
            return unpack(reader.take(count * size))
        reader.expect(count, 8)
        return [_value(reader, item_kind, depth + 1) for _ in range(count)]
    raise GgufError(f"the header holds a value of the unknown kind {kind}; the file is damaged or too new")


def read_header(data: memoryview) -> Header:
    """The header of the GGUF file whose bytes are `data`.

    Raises GgufError for anything that is not a complete GGUF file with tensors of known types.
    """
    if bytes(data[:4]) != _MAGIC:
        raise GgufError("this is not a GGUF file")
    reader = _Reader(data)
    reader.take(4)
    version = reader.unsigned(4)
    if version not in _VERSIONS:
        if version and version & 0xFFFF == 0:
            raise GgufError("this GGUF file is big-endian; only little-endian files can be read")
        raise GgufError(f"this GGUF file has format version {version}; versions 2 and 3 can be read")
    tensor_count, value_count = reader.unsigned(8), reader.unsigned(8)
    # A value is at least a name's length, a kind and one byte; a tensor a name's length and 24 bytes.
    reader.expect(value_count, 13)
    values: dict[str, Value] = {}
    for _ in range(value_count):
        key = reader.text()
        values[key] = _value(reader, reader.unsigned(4))
    metadata = Metadata(values)
    reader.expect(tensor_count, 32)
    infos = [_tensor_info(reader) for _ in range(tensor_count)]
    start = _aligned(reader.position, metadata)
    tensors = tuple(Tensor(name, shape, kind, start + offset) for name, shape, kind, offset in infos)
    _check_extent(tensors, len(data))
    return Header(metadata, tensors)


def _aligned(position: int, metadata: Metadata) -> int:
    alignment = metadata.integer("general.alignment")
    if alignment is None:
        alignment = _DEFAULT_ALIGNMENT
    if alignment <= 0 or alignment % 8:
        raise GgufError(f"the header asks for an alignment of {alignment} bytes; the file is damaged")
    return -(-position // alignment) * alignment


def _tensor_info(reader: _Reader) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = reader.text()
    dimensions = reader.unsigned(4)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise GgufError(f"tensor {name} has {dimensions} dimensions; the file is damaged")
    # The file gives the fastest dimension first.
    shape = tuple(reversed([reader.unsigned(8) for _ in range(dimensions)]))
    number, offset = reader.unsigned(4), reader.unsigned(8)
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise GgufError(f"tensor {name} has the unknown type number {number}; the file is damaged or too new")
    if 0 in shape or shape[-1] % kind.block_elements:
        raise GgufError(f"tensor {name} has an impossible shape for its type {kind.name}")
    return name, shape, kind, offset


def _check_extent(tensors: tuple[Tensor, ...], size_bytes: int) -> None:
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise GgufError("two tensors have the same name; the file is damaged")
    end = max((tensor.offset + tensor.size_bytes for tensor in tensors), default=0)
    if end > size_bytes:
        raise GgufError(_cut_off(f"at {size_bytes} bytes, its tensors need {end}"))


def _cut_off(where: str) -> str:
    return f"the file is incomplete: it ends {where}. Download or copy it again"

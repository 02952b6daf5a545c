"""Writes the model's weights as one safetensors file, a tensor at a time.

Source: the safetensors format: the header's length as 8 little-endian bytes, a JSON header, then the data.
mlx-lm's own writer wants all weights in memory; an import must also work beside models that are serving.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.gguf.architecture import ConfigValue, Placement
from worker.gguf.types import GROUP, repack, unpack_plain

_ITEM_BYTES: Final = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class _Part:
    """One tensor of the safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


def quantization(placements: tuple[Placement, ...]) -> dict[str, ConfigValue] | None:
    """The config's `quantization`: the most common kind for all, and every layer that differs by name."""
    bits = {
        placement.target.removesuffix(".weight"): own
        for placement in placements
        if (own := placement.tensor.type.bits) is not None
    }
    if not bits:
        return None
    counts = Counter(bits.values())
    usual = max(counts, key=lambda own: counts[own])
    common: dict[str, ConfigValue] = {"group_size": GROUP, "bits": usual, "mode": "affine"}
    for layer, own in bits.items():
        if own != usual:
            common[layer] = {"group_size": GROUP, "bits": own, "mode": "affine"}
    return common


def write_weights(
    path: Path, placements: tuple[Placement, ...], data: memoryview, progress: Callable[[int], None]
) -> int:
    """Write all of `placements` to `path` and to the disk; returns the size in bytes.

    `progress` is told how many bytes of the source's tensors are done. Raises GgufError and OSError.
    """
    parts = [part for placement in placements for part in _parts(placement)]
    # Wide items first, so that every tensor is aligned to its items.
    offsets: dict[str, int] = {}
    end = 0
    for part in sorted(parts, key=lambda part: -_ITEM_BYTES[part.dtype]):
        offsets[part.name] = end
        end += part.size_bytes
    header = _header(parts, offsets)
    with path.open("wb") as file:
        file.write(header)
        done = 0
        for placement in placements:
            for part, content in zip(_parts(placement), _contents(placement, data), strict=True):
                file.seek(len(header) + offsets[part.name])
                file.write(np.ascontiguousarray(content).data)
            done += placement.tensor.size_bytes
            progress(done)
        file.flush()
        os.fsync(file.fileno())
    return len(header) + end


def _parts(placement: Placement) -> list[_Part]:
    tensor, target = placement.tensor, placement.target
    if tensor.type.bits is None:
        assert tensor.type.plain is not None
        return [_Part(target, tensor.type.plain, tensor.shape)]
    rows, columns = tensor.shape
    layer = target.removesuffix(".weight")
    groups = (rows, columns // GROUP)
    return [
        _Part(target, "U32", (rows, columns * tensor.type.bits // 32)),
        _Part(f"{layer}.scales", "F16", groups),
        _Part(f"{layer}.biases", "F16", groups),
    ]


def _header(parts: list[_Part], offsets: dict[str, int]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    for part in sorted(parts, key=lambda part: offsets[part.name]):
        start = offsets[part.name]
        entries[part.name] = {
            "dtype": part.dtype,
            "shape": part.shape,
            "data_offsets": [start, start + part.size_bytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _contents(placement: Placement, data: memoryview) -> Iterator[NDArray[np.generic]]:
    tensor = placement.tensor
    raw = tensor.bytes_in(data)
    if tensor.type.bits is None:
        yield _rows_in_order(unpack_plain(raw, tensor.type, tensor.shape), placement.heads)
        return
    packed = repack(raw, tensor.type, (tensor.shape[0], tensor.shape[1]))
    for part in (packed.weight, packed.scales, packed.biases):
        yield _rows_in_order(part, placement.heads)


def _rows_in_order(rows: NDArray[np.generic], heads: int | None) -> NDArray[np.generic]:
    """Undo the interleaving of each head's two halves."""
    if heads is None:
        return rows
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

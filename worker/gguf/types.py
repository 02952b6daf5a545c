"""GGUF's tensor types, and the five (and bfloat16) that can be imported without changing a value.

Source: ggml's block layouts. A block holds `block_elements` consecutive values of a row. Four-bit blocks keep
value i in the low half of byte i and value i + 16 in the high half; mlx packs consecutive values into a
word from its low end, and dequantises as scale * q + bias. So the numbers q stay, and
    Q4_0 = d * (q - 8),   Q4_1 = d * q + m,   Q8_0 = d * q with q in -128..127
become a scale of d and a bias of -8 d, m or -128 d: exact in float16, since only powers of two multiply.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.gguf.errors import GgufError

GROUP: Final = 32
"""Values per scale, in GGUF's blocks and so in mlx."""


@dataclass(frozen=True)
class TensorType:
    name: str
    block_elements: int
    block_bytes: int
    bits: int | None = None
    """Bits per packed value; None for plain numbers."""
    plain: str | None = None
    """What safetensors calls the plain number; None for blocks and for what can't be imported."""

    @property
    def importable(self) -> bool:
        return self.bits is not None or self.plain is not None


def _table() -> dict[int, TensorType]:
    k = 256
    rows: tuple[tuple[int, str, int, int], ...] = (
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", k, 84),
        (11, "Q3_K", k, 110),
        (12, "Q4_K", k, 144),
        (13, "Q5_K", k, 176),
        (14, "Q6_K", k, 210),
        (15, "Q8_K", k, 292),
        (16, "IQ2_XXS", k, 66),
        (17, "IQ2_XS", k, 74),
        (18, "IQ3_XXS", k, 98),
        (19, "IQ1_S", k, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", k, 110),
        (22, "IQ2_S", k, 82),
        (23, "IQ4_XS", k, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", k, 56),
        (34, "TQ1_0", k, 54),
        (35, "TQ2_0", k, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
    )
    known = {number: TensorType(name, elements, size) for number, name, elements, size in rows}
    return known | {
        0: TensorType("F32", 1, 4, plain="F32"),
        1: TensorType("F16", 1, 2, plain="F16"),
        2: TensorType("Q4_0", GROUP, 18, bits=4),
        3: TensorType("Q4_1", GROUP, 20, bits=4),
        8: TensorType("Q8_0", GROUP, 34, bits=8),
        30: TensorType("BF16", 1, 2, plain="BF16"),
    }


TENSOR_TYPES: Final = _table()

_BLOCKS: Final = {
    "Q4_0": np.dtype([("d", "<f2"), ("q", "u1", 16)]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    "Q8_0": np.dtype([("d", "<f2"), ("q", "u1", 32)]),
}
_PLAIN: Final[dict[str, np.dtype[np.generic]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class Packed:
    """One quantised matrix as mlx holds it; `scales` and `biases` have a column per group."""

    weight: NDArray[np.uint32]
    scales: NDArray[np.float16]
    biases: NDArray[np.float16]


def unpack_plain(data: memoryview, kind: TensorType, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The numbers of a plain tensor; bfloat16 as its 16 bits, since numpy has no such type."""
    return np.frombuffer(data, _PLAIN[kind.name]).reshape(shape)


def repack(data: memoryview, kind: TensorType, shape: tuple[int, ...]) -> Packed:
    """The quantised matrix in `data`, repacked for mlx without changing a value.

    Raises GgufError for scales so large that the bias would not fit into float16.
    """
    rows, columns = shape
    blocks = np.frombuffer(data, _BLOCKS[kind.name]).reshape(rows, columns // GROUP)
    scales = np.ascontiguousarray(blocks["d"])
    if kind.name == "Q8_0":
        # From two's complement to an offset of 128.
        values = blocks["q"] ^ np.uint8(0x80)
        return Packed(_words(values, rows), scales, _times(scales, -128))
    values = np.concatenate([blocks["q"] & np.uint8(0x0F), blocks["q"] >> np.uint8(4)], axis=-1)
    nibbles = values[..., 0::2] | values[..., 1::2] << np.uint8(4)
    biases = np.ascontiguousarray(blocks["m"]) if kind.name == "Q4_1" else _times(scales, -8)
    return Packed(_words(nibbles, rows), scales, biases)


def _times(scales: NDArray[np.float16], factor: int) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        biases = scales * np.float16(factor)
    if not np.isfinite(biases).all():
        raise GgufError("a tensor has scales beyond float16's range; the file is damaged")
    return biases


def _words(values: NDArray[np.uint8], rows: int) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).reshape(rows, -1).view("<u4")

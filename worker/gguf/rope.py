"""RoPE scaling: from GGUF's metadata and factors to the `rope_scaling` of a config.

Source: for llama3, the formula that Meta published with Llama 3.1. GGUF keeps only its result, one divisor
for each frequency, so the parameters are found back and checked against every one of them.
"""

from math import pi
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.gguf.errors import GgufError
from worker.gguf.header import Metadata

ROPE_FREQUENCIES: Final = "rope_freqs.weight"

_LOW_FACTOR: Final = 1.0
_HIGH_FACTOR: Final = 4.0
_LLAMA3_CONTEXT: Final = 8192


def rope_scaling(
    metadata: Metadata, name: str, theta: float, factors: NDArray[np.float32] | None
) -> dict[str, str | int | float] | None:
    """The config's `rope_scaling`, None where there is none.

    Raises GgufError for a kind of scaling that mlx-lm would not compute alike.
    """
    if factors is not None:
        return _llama3(theta, factors)
    kind = metadata.text(f"{name}.rope.scaling.type") or "none"
    factor = metadata.number(f"{name}.rope.scaling.factor")
    if kind == "none" or factor is None:
        return None
    if metadata.number(f"{name}.rope.scaling.attn_factor") not in (None, 1.0):
        raise GgufError("this model scales its attention with the context, which can't be imported")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = metadata.integer(f"{name}.rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise GgufError(f"RoPE scaling of the kind {kind!r} can't be imported")


def llama3_factors(theta: float, head_dim: int, factor: float) -> NDArray[np.float64]:
    """The divisor of each of the head_dim / 2 frequencies."""
    wavelengths = 2 * pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = _LLAMA3_CONTEXT / wavelengths
    smooth = (turns - _LOW_FACTOR) / (_HIGH_FACTOR - _LOW_FACTOR)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(turns > _HIGH_FACTOR, 1.0, np.where(turns < _LOW_FACTOR, factor, between))


def _llama3(theta: float, factors: NDArray[np.float32]) -> dict[str, str | int | float] | None:
    factor = float(factors.max())
    if factor == 1.0 and (factors == 1.0).all():
        return None
    if not np.allclose(llama3_factors(theta, 2 * len(factors), factor), factors, rtol=1e-4):
        raise GgufError(
            f"the RoPE factors in {ROPE_FREQUENCIES} are not Llama 3's, so they can't be imported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW_FACTOR,
        "high_freq_factor": _HIGH_FACTOR,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }

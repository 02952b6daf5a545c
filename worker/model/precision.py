"""On the CPU backend: weights as float32, when they fit.

The CPU has a fast matrix product for float32 alone; packed and half-precision weights are computed an order
of magnitude slower than they take to be unpacked once.
"""

from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, get_total_parameters

SHARE_OF_MEMORY: Final = 0.5
"""Of the memory available now, how much float32 weights may take."""


def on_cpu() -> bool:
    """Whether mlx computes on the CPU here."""
    return bool(mx.default_device() == mx.Device(mx.cpu, 0))


def widen(model: nn.Module, *, available_bytes: int | None = None) -> bool:
    """Make the weights float32 (lazily: nothing is computed yet) if they fit; whether it was done."""
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    if 4 * get_total_parameters(model) > SHARE_OF_MEMORY * available:
        return False
    dequantize_model(model)
    model.set_dtype(mx.float32)
    return True


def weights_bytes(model: nn.Module) -> int:
    return sum(int(array.nbytes) for _, array in parameters(model))


def parameters(model: nn.Module) -> list[tuple[str, Any]]:
    """Name and array of every parameter."""
    return list(tree_flatten(model.parameters()))

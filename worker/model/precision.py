"""On the CPU backend: weights as float32, when they fit.

The CPU has a fast matrix product for float32 alone; packed and half-precision weights are computed an order
of magnitude slower than it takes to unpack them once.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import psutil
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model, get_total_parameters

from shared.limits import SHARE_FOR_FLOAT32
from worker.model.unpacking import can_unpack, unpacked


def on_cpu() -> bool:
    """Whether mlx computes on the CPU here."""
    return bool(mx.default_device() == mx.Device(mx.cpu, 0))


def widen(
    network: nn.Module, progress: Callable[[int, int], None], *, available_bytes: int | None = None
) -> bool:
    """Make the weights float32 if they fit; whether it was done.

    `progress` gets bytes done and bytes in all. Weights that are not packed are left to be evaluated.
    """
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    total = 4 * int(get_total_parameters(network))
    if total > SHARE_FOR_FLOAT32 * available:
        return False
    mx.eval(network.parameters())
    done = 0
    packed = [named for named in network.named_modules() if can_unpack(named[1])]
    for (name, _), layer in zip(packed, unpacked([module for _, module in packed]), strict=True):
        network.update_modules(tree_unflatten([(name, layer)]))
        done += layer.weight.nbytes
        progress(done, total)
    dequantize_model(network)
    network.set_dtype(mx.float32)
    return True


def weights_bytes(network: nn.Module) -> int:
    return sum(int(array.nbytes) for _, array in parameters(network))


def parameters(network: nn.Module) -> list[tuple[str, Any]]:
    """Name and array of every parameter."""
    return list(tree_flatten(network.parameters()))

"""Prepares the process for mlx: call `prepare_backend` before anything imports it.

The Linux wheel of mlx brings a reference BLAS of a tenth of the speed. Its symbols are looked up globally, so
an OpenBLAS that is loaded first, and globally, takes its place.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

from worker.model.importing import prepare_imports

_NAMES: Final = ("libopenblas.so.0", "libopenblas.so")


def prepare_backend() -> None:
    """Import mlx, after what must be in place by then. Costs little; mlx-lm and transformers come later."""
    # A worker loads exactly what its record names.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    # Its threads spin for 2 to the power of this many cycles after each product, by default for 20 ms. That
    # was a sixth of the CPU that a prompt took.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    preload_blas()
    prepare_imports()
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu, 0):
        # There it would start a C++ compiler at the first use of each function.
        mx.disable_compile()


def preload_blas(
    *,
    platform: str = sys.platform,
    load: Callable[..., object] = ctypes.CDLL,
    names: tuple[str, ...] = _NAMES,
) -> str | None:
    """Load OpenBLAS if there is one; call it before `mlx` is imported. Returns its name, or None.

    It helps dense float32 weights only and works the same without.
    """
    if platform != "linux":
        return None
    for name in names:
        try:
            load(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return None

"""A fast BLAS for the CPU backend on Linux.

The Linux wheel of mlx brings a reference BLAS of a tenth of the speed. Its symbols are looked up globally, so
an OpenBLAS that is loaded first, and globally, takes its place.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Final

_NAMES: Final = ("libopenblas.so.0", "libopenblas.so")


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

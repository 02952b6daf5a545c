"""How much memory the worker really holds, as MLX and the OS tell."""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

import mlx.core as mx
import psutil

from shared.status import Memory

_MOST_IDLE_BYTES: Final = 2**30
_ALLOCATOR_PART: Final = 16
"""Of the working set, what mlx may keep for reuse: enough for the arrays of a step."""

FootprintProbe = Callable[[], int]
"""Bytes of this process as the OS counts them."""

# macOS: libproc.h, sys/resource.h. rusage_info_v2 begins with uuid[16], then uint64 fields:
# user_time, system_time, pkg_idle_wkups, interrupt_wkups, pageins, wired_size, resident_size, phys_footprint.
_RUSAGE_INFO_V2: Final = 2
_RUSAGE_V2_BYTES: Final = 16 + 18 * 8
_PHYS_FOOTPRINT_AT: Final = 16 + 7 * 8


def footprint_bytes() -> int:
    """The process's footprint: what Activity Monitor shows on macOS, resident pages elsewhere.

    On macOS resident pages would miss what Metal wired and what was compressed.
    """
    if sys.platform == "darwin":
        measured = _phys_footprint(os.getpid())
        if measured is not None:
            return measured
    return int(psutil.Process().memory_info().rss)


def _phys_footprint(pid: int) -> int | None:
    buffer = (ctypes.c_uint8 * _RUSAGE_V2_BYTES)()
    try:
        failed = ctypes.CDLL(None).proc_pid_rusage(pid, _RUSAGE_INFO_V2, ctypes.byref(buffer))
    except (OSError, AttributeError):
        return None
    if failed:
        return None
    return ctypes.c_uint64.from_buffer(buffer, _PHYS_FOOTPRINT_AT).value


def process_bytes() -> int:
    """What the process holds beside mlx's arrays: Python, libraries, the tokenizer."""
    return max(0, footprint_bytes() - int(mx.get_active_memory()) - int(mx.get_cache_memory()))


def working_set_bytes() -> int:
    """What the GPU may hold before macOS pages; 0 where there is no such limit."""
    information = mx.device_info()
    return int(information.get("max_recommended_working_set_size", 0))


def bound_allocator(working_set: int) -> None:
    """Bound what mlx keeps for reuse, which else grows to what it may hold in all. On the engine's thread."""
    share = working_set // _ALLOCATOR_PART if working_set else _MOST_IDLE_BYTES
    mx.set_cache_limit(min(_MOST_IDLE_BYTES, share))


def read_memory(
    *,
    weights_bytes: int,
    kv_bytes: int,
    draft_bytes: int = 0,
    prompt_cache_bytes: int = 0,
    reserved_bytes: int = 0,
    wanted_bytes: int = 0,
    wanted_to_go_on: bool = False,
    stalled: bool = False,
    number: int = 0,
    probe: FootprintProbe = footprint_bytes,
    working_set: int = 0,
) -> Memory:
    """A reading now. Cheap enough for once a second; may be called from any thread."""
    return Memory(
        active_bytes=int(mx.get_active_memory()),
        cache_bytes=int(mx.get_cache_memory()),
        peak_bytes=int(mx.get_peak_memory()),
        limit_bytes=int(mx.get_memory_limit()),
        footprint_bytes=probe(),
        weights_bytes=weights_bytes,
        draft_bytes=draft_bytes,
        kv_bytes=kv_bytes,
        prompt_cache_bytes=prompt_cache_bytes,
        reserved_bytes=reserved_bytes,
        wanted_bytes=wanted_bytes,
        wanted_to_go_on=wanted_to_go_on,
        stalled=stalled,
        number=number,
        working_set_bytes=working_set,
    )

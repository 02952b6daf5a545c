"""macOS's sysctl values, read without a process."""

import ctypes
import sys
from typing import Final

_MOST_BYTES: Final = 4096


def sysctl_bytes(name: str) -> bytes | None:
    """The raw value; None where there is no such name, or no sysctl at all."""
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        # Not macOS: its C library has no such function.
        return None
    value = ctypes.create_string_buffer(_MOST_BYTES)
    size = ctypes.c_size_t(_MOST_BYTES)
    if call(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.raw[: size.value]


def sysctl_text(name: str) -> str | None:
    """A value that is text, such as `machdep.cpu.brand_string`."""
    value = sysctl_bytes(name)
    return None if value is None else value.rstrip(b"\0").decode("utf-8", "replace").strip() or None


def sysctl_whole(name: str) -> int | None:
    """A value that is a whole number of 4 or 8 bytes, such as `hw.memsize`."""
    value = sysctl_bytes(name)
    if value is None or len(value) not in (4, 8):
        return None
    return int.from_bytes(value, sys.byteorder)

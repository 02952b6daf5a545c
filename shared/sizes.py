"""Sizes and durations as people write them: `8GiB`, `512MB`, `75%`, `90s`, `30m`, `never`."""

import math
import re
from typing import Final

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-z%]*)\s*$", re.IGNORECASE)

NEVER: Final = math.inf


def parse_size(text: str, *, whole_bytes: int | None = None) -> int:
    """Bytes for `64MiB`, `8GB`, `1024`; with `whole_bytes` also for a share of it, `75%`.

    Raises ValueError with a sentence that shows the allowed form.
    """
    match = _NUMBER.match(text)
    if match:
        number, unit = float(match[1]), match[2].lower()
        if unit == "%" and whole_bytes is not None:
            return int(whole_bytes * number / 100)
        if unit in _UNITS:
            return int(number * _UNITS[unit])
    forms = '"8GiB", "512MB"' + (', "75%"' if whole_bytes is not None else "")
    raise ValueError(f"{text!r} is not a size; write it like {forms}")


def parse_duration(text: str) -> float:
    """Seconds for `250ms`, `90s`, `30m`, `2h`; infinity for `never`.

    Raises ValueError with a sentence that shows the allowed form.
    """
    if text.strip().lower() == "never":
        return NEVER
    match = _NUMBER.match(text)
    if match and match[2].lower() in _SECONDS:
        return float(match[1]) * _SECONDS[match[2].lower()]
    raise ValueError(f'{text!r} is not a duration; write it like "90s", "30m", "2h" or "never"')


def format_size(size_bytes: int) -> str:
    """`4.2 GiB`: binary units, one decimal from MiB on."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "KiB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """`2h 05m`, `3m 20s`, `4.1s`; `never` for infinity."""
    if math.isinf(seconds):
        return "never"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"

"""How short of memory the machine is: normal, warn or critical, as the system itself judges.

The system is asked by a source that tests replace. Time is passed in, so nothing here waits.
"""

import re
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

from supervisor.system.sysctl import sysctl_whole


class Level(IntEnum):
    """Comparable: the larger, the worse."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2

    def __str__(self) -> str:
        return self.name.lower()


Source = Callable[[], Level | None]
"""The level now; None where the system doesn't tell."""

CALM_S: Final = 30.0
"""A level is left for a lower one only after it has been lower for so long: what was just freed counts at
once, and unloading and loading must not chase each other."""

_SYSCTL: Final = "kern.memorystatus_vm_pressure_level"
# Source: xnu's DISPATCH_MEMORYPRESSURE_NORMAL, _WARN and _CRITICAL, which the sysctl answers with.
_SYSCTL_LEVELS: Final = {1: Level.NORMAL, 2: Level.WARN, 4: Level.CRITICAL}

_PSI: Final = Path("/proc/pressure/memory")
# Source: the kernel's Documentation/accounting/psi.rst: `some` is the share of the last ten seconds in which
# at least one task waited for memory, `full` that in which all of them did.
_PSI_LINE: Final = re.compile(r"^(some|full) avg10=(\d+(?:\.\d+)?) ", re.MULTILINE)
_WARN_SOME_PERCENT: Final = 10.0
_CRITICAL_FULL_PERCENT: Final = 10.0


def macos_source(read: Callable[[str], int | None] = sysctl_whole) -> Source:
    """What colours the graph in Activity Monitor."""

    def level() -> Level | None:
        value = read(_SYSCTL)
        return None if value is None else _SYSCTL_LEVELS.get(value)

    return level


def linux_source(path: Path = _PSI) -> Source:
    """The kernel's pressure stall information; None where it is switched off."""

    def level() -> Level | None:
        try:
            return level_of_psi(path.read_text("ascii"))
        except (OSError, UnicodeError):
            return None

    return level


def level_of_psi(text: str) -> Level | None:
    """The level that a pressure file stands for; None when it is not one."""
    shares = {kind: float(percent) for kind, percent in _PSI_LINE.findall(text)}
    if "some" not in shares:
        return None
    if shares.get("full", 0.0) >= _CRITICAL_FULL_PERCENT:
        return Level.CRITICAL
    return Level.WARN if shares["some"] >= _WARN_SOME_PERCENT else Level.NORMAL


def system_source(platform: str = sys.platform) -> Source:
    """The source of this system; one that never tells elsewhere."""
    if platform == "darwin":
        return macos_source()
    if platform == "linux":
        return linux_source()
    return lambda: None


class Pressure:
    """The level to act on: up at once, down only when it has been calmer for `calm_s`."""

    def __init__(self, source: Source, *, calm_s: float = CALM_S) -> None:
        self._source = source
        self._calm_s = calm_s
        self._calmer_since: float | None = None
        self._calmer = Level.NORMAL
        self.level = Level.NORMAL

    def read(self, now_s: float) -> Level:
        """Ask the source at `now_s` of a monotonic clock; returns `level`.

        A source that doesn't tell counts as normal: a machine without the probe must not stand still.
        """
        seen = self._source() or Level.NORMAL
        if seen >= self.level:
            self.level = seen
            self._calmer_since = None
            return self.level
        if self._calmer_since is None:
            self._calmer_since, self._calmer = now_s, seen
        # The way down ends at the worst of what was seen on it.
        self._calmer = max(self._calmer, seen)
        if now_s - self._calmer_since >= self._calm_s:
            self.level = self._calmer
            self._calmer_since = None
        return self.level

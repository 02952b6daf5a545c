"""Acts on the machine's mood: lets workers give memory back when it is short, and keeps the machine awake
while somebody needs it."""

import asyncio
from typing import Final, Protocol

from supervisor.system.pressure import Level, Pressure, Source, system_source
from supervisor.system.sleep import Assertion, SleepGuard, system_assertion
from supervisor.telemetry.events import Events

INTERVAL_S: Final = 5.0
"""Between two looks: one file or one sysctl is read, so that an idle supervisor stays idle."""


class Pressed(Protocol):
    """The pool, as far as this is concerned."""

    @property
    def needed(self) -> int:
        """Requests and leases for which the machine must not fall asleep."""

    def press(self, level: Level) -> None: ...


class Mood:
    """Looks at the machine every `interval_s`. `source` and `assertion` are the system's unless given."""

    def __init__(
        self,
        pool: Pressed,
        events: Events,
        *,
        source: Source | None = None,
        assertion: Assertion | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._pool = pool
        self._events = events
        self._pressure = Pressure(source or system_source())
        self._guard = SleepGuard(assertion or system_assertion(on_failure=self._not_held))
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._told = False

    def start(self) -> None:
        """Begin to look."""
        self._look()

    def close(self) -> None:
        """Look no more, and let the machine sleep again."""
        if self._timer is not None:
            self._timer.cancel()
        self._guard.close()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        # One timer after the other: a machine that slept finds one due, not all those that it missed.
        self._timer = loop.call_later(self._interval_s, self._look)
        now = loop.time()
        before = self._pressure.level
        level = self._pressure.read(now)
        if level > Level.NORMAL or level != before:
            self._pool.press(level)
        self._guard.update(self._pool.needed, now)

    def _not_held(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            reason = error.strerror or str(error)
            self._events.emit("sleep.not_held", level="warning", reason=reason)

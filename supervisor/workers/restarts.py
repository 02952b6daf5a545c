"""When a worker that died gets a successor."""

from typing import Final

EARLY_S: Final = 10.0
WINDOW_S: Final = 60.0
LIMIT: Final = 3
WAIT_S: Final = 2.0


class RestartPolicy:
    """Respawn at once; after a second early death wait; after three in a rolling minute give up.

    A death is early within `EARLY_S` of the spawn, or before the worker was ready. The minute runs
    outside of loads: one that takes half a minute to fail must not go on for ever.
    """

    def __init__(self) -> None:
        self._early_deaths_s: list[float] = []

    def died(self, spawned_s: float, now: float, *, served: bool) -> float | None:
        """How many seconds to wait before the next spawn; None is to give up. Times are monotonic."""
        if served and now - spawned_s >= EARLY_S:
            return 0.0
        recent = [death for death in self._early_deaths_s if death > spawned_s - WINDOW_S]
        self._early_deaths_s = [*recent, now]
        if len(self._early_deaths_s) >= LIMIT:
            return None
        return WAIT_S if len(self._early_deaths_s) > 1 else 0.0

    def forget(self) -> None:
        """Somebody asked for another try, or something has changed."""
        self._early_deaths_s.clear()

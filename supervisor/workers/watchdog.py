"""Tells a hung worker from a busy one, by what its health says and how long it says nothing."""

from shared.admin import Health


class Watchdog:
    """Verdicts over one worker; each is a cause in words, or None.

    Time is counted only as it was watched, in bits of at most `longest_s`: when the supervisor itself
    was held up (a sleeping machine, a debugger), that time says nothing about the worker.
    """

    def __init__(self, *, silence_s: float, stall_s: float, longest_s: float) -> None:
        self._silence_s = silence_s
        self._stall_s = stall_s
        self._longest_s = longest_s
        self._silent_s = 0.0
        self._still_s = 0.0
        self._steps = -1

    def unanswered(self, waited_s: float) -> str | None:
        """The worker was asked and has not answered for another `waited_s`."""
        self._silent_s += min(waited_s, self._longest_s)
        if self._silent_s >= self._silence_s:
            return f"it did not answer for {self._silence_s:g} s"
        return None

    def answered(self, health: Health, since_s: float) -> str | None:
        """The worker answered, `since_s` after it did so before."""
        self._silent_s = 0.0
        if not health.running or health.steps != self._steps:
            self._steps = health.steps
            self._still_s = 0.0
            return None
        self._still_s += min(since_s, self._longest_s)
        if self._still_s >= self._stall_s:
            return f"{health.running} requests were running and it made no step for {self._stall_s:g} s"
        return None

"""How much prompt one step computes: what lets the rows that decode go on without a stall one notices."""

from typing import Final

STALL_S: Final = 0.15
"""What decoding rows may wait for a step."""
_AIM_S: Final = 0.8 * STALL_S
"""The step decodes too, and prompts become slower as they grow."""
_SMALLEST: Final = 8
_UNKNOWN: Final = 64
"""Tokens for the first step, when nothing is known of this model's speed."""
_WEIGHT: Final = 0.5
"""Of the newest measurement."""


class Chunks:
    """Learns from each step; `most` tokens are computed while nobody waits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._token_s: float | None = None

    def size(self, prompts: int, *, decoding: bool) -> int:
        """Tokens for each of `prompts` rows in the next step."""
        total = self._most
        if decoding:
            fitting = _UNKNOWN if self._token_s is None else int(_AIM_S / self._token_s)
            total = min(total, fitting)
        return max(_SMALLEST, total // prompts)

    def took(self, tokens: int, seconds: float) -> None:
        """So many tokens of prompt took so long."""
        # Few tokens cost as much as reading the weights does, which says nothing about many.
        if tokens < _SMALLEST or seconds <= 0:
            return
        each = seconds / tokens
        self._token_s = each if self._token_s is None else _WEIGHT * each + (1 - _WEIGHT) * self._token_s

"""How much of prompts and texts one go computes: what lets the rows that decode go on without a stall one
notices.
"""

from typing import Final

STALL_S: Final = 0.15
"""What decoding rows may wait for one go."""
_AIM_S: Final = 0.8 * STALL_S
"""A step decodes too, and prompts become slower as they grow."""
_SMALLEST: Final = 16
_LEAST: Final = 8
"""Of each of several prompts: with fewer, hardly any of a go's time goes into them."""
_UNKNOWN: Final = 64
"""Tokens for the first go, when nothing is known of this model's speed."""


class Pace:
    """Learns from what each go took. For the engine's thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Tokens that one go computes at most, whether or not anybody waits."""
        self.tokens = min(_UNKNOWN, most)
        """Tokens for the next go while somebody waits."""

    def share(self, prompts: int, *, decoding: bool) -> int:
        """Tokens for each of so many prompts in the next step; nobody waits unless rows are `decoding`."""
        return max(_LEAST, (self.tokens if decoding else self.most) // prompts)

    def took(self, tokens: int, seconds: float) -> None:
        """A go with so many tokens took so long."""
        # A small one says little about a large one: most of its time goes into reading the weights.
        if tokens < self.tokens // 2 and seconds < _AIM_S:
            return
        fitting = int(tokens * _AIM_S / max(seconds, 1e-6))
        # One slow go, for whatever reason, changes it by half and a quick one doubles it at most.
        fitting = max(self.tokens // 2, min(fitting, 2 * self.tokens))
        self.tokens = min(max(_SMALLEST, fitting), self.most)

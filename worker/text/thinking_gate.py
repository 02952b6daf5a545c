"""A row's thinking, followed by its tokens: a constraint begins when it ends, a budget ends it."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

TokenBytes = Callable[[int], bytes]
"""The bytes of a token; of a control token those of its name."""


class Marker(msgspec.Struct, frozen=True):
    """A marker of thinking: one token, or letters however they are cut into tokens."""

    token: int | None
    text: bytes


class ThinkingTokens(msgspec.Struct, frozen=True):
    """How a model marks its thinking, in tokens.

    `closings` are what to say to end it: the first for the first time, the last from then on.
    """

    start: Marker
    end: Marker
    opening: tuple[int, ...]
    closings: tuple[tuple[int, ...], ...]


_PARTS: Final = 64
"""Tokens whose letters may hold one marker."""


class Gate:
    """One row's. `opened` says that the prompt ends inside an open block; `budget` is in tokens."""

    def __init__(
        self,
        thinking: ThinkingTokens,
        token_bytes: TokenBytes,
        *,
        opened: bool = False,
        budget: int | None = None,
    ) -> None:
        self.open = opened
        self.spent = 0
        """Tokens of thinking so far."""
        self._thinking = thinking
        self._token_bytes = token_bytes
        self._budget = budget
        self._closed = 0
        self._forced: list[int] = []
        self._tail = b""
        self._close_if_spent()

    @property
    def forced(self) -> int | None:
        """The token that must come next, if one must."""
        return self._forced[0] if self._forced else None

    @property
    def opening(self) -> tuple[int, ...]:
        """What the model says to begin a block."""
        return self._thinking.opening

    def force(self, tokens: Sequence[int]) -> None:
        """Let these come next."""
        self._forced = list(tokens)

    def advance(self, token: int) -> None:
        """The row said `token`."""
        forced = bool(self._forced)
        if forced:
            del self._forced[0]
        marker = self._thinking.end if self.open else self._thinking.start
        if self._completes(marker, token):
            self._tail = b""
            self.open = not self.open
            # Forced tokens behind the end marker are still to come.
        elif self.open and not forced:
            self.spent += 1
        if self.open and not self._forced:
            self._close_if_spent()

    def _completes(self, marker: Marker, token: int) -> bool:
        if marker.token is not None:
            return token == marker.token
        self._tail = (self._tail + self._token_bytes(token))[-(len(marker.text) + _PARTS) :]
        return marker.text in self._tail

    def _close_if_spent(self) -> None:
        if self.open and self._budget is not None and self.spent >= self._budget:
            closings = self._thinking.closings
            self._forced = list(closings[min(self._closed, len(closings) - 1)])
            self._closed += 1

"""Log probabilities beside the text they belong to.

The engine tells a token's; what is shown is text, some of it held back for a while or for good. An entry
comes with the first of its token's text that is shown, so entries and text tell the same answer.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from worker.text.detokenize import Detokenizers


class Scored(NamedTuple):
    """What the engine tells of one token: natural logarithms of probabilities."""

    logprob: float
    best: tuple[tuple[int, float], ...]
    """The likeliest token ids, the likeliest first, whether or not the token is among them."""


class Likelihood(msgspec.Struct, frozen=True):
    """One token that could have been said at a position."""

    token: bytes
    logprob: float

    @property
    def text(self) -> str | None:
        """The token by itself, unless it is only a part of a character."""
        try:
            return self.token.decode()
        except UnicodeDecodeError:
            return None


class TokenLikelihood(Likelihood, frozen=True):
    """The token that was said, and what else could have been."""

    offset: int = 0
    """Where in the reply's text its own begins, in characters."""
    best: tuple[Likelihood, ...] = ()


def spelled(token: bytes) -> str:
    r"""Bytes as OpenAI spells them: `\xf0\x9f`."""
    return "".join(f"\\x{byte:02x}" for byte in token)


class TokenTexts:
    """The bytes of any token by itself, special ones as they are written. `tokenizer` is mlx-lm's wrapper."""

    def __init__(self, tokenizer: Any, detokenizers: Detokenizers) -> None:
        self._tokenizer = tokenizer
        self._bytes_of = detokenizers.bytes_of
        self._known: dict[int, bytes] = {}

    def of(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            known = self._bytes_of(token)
            if not known:
                known = str(self._tokenizer.convert_ids_to_tokens([token])[0] or "").encode()
            self._known[token] = known
        return known

    def likelihood(self, scored: Scored, token: int, offset: int = 0) -> TokenLikelihood:
        """The engine's figures in words."""
        return TokenLikelihood(
            self.of(token),
            scored.logprob,
            offset,
            tuple(Likelihood(self.of(other), logprob) for other, logprob in scored.best),
        )


class PendingLikelihoods:
    """Entries in the order of their tokens, kept until their text is shown."""

    __slots__ = ("_made", "_shown", "_waiting")

    def __init__(self) -> None:
        self._made = 0
        self._shown = 0
        self._waiting: deque[tuple[int, Callable[[int], TokenLikelihood]]] = deque()

    def push(self, text: str, entry: Callable[[int], TokenLikelihood]) -> None:
        """A token that brought `text`; `entry` words it, given its offset."""
        self._waiting.append((self._made, entry))
        self._made += len(text)

    def drop(self) -> None:
        """What waits will have no text that is shown."""
        self._waiting.clear()

    def show(self, text: str) -> tuple[TokenLikelihood, ...]:
        """Some more text is shown; the entries of the tokens that it begins with or goes into."""
        self._shown += len(text)
        taken = []
        while self._waiting and self._waiting[0][0] < self._shown:
            offset, entry = self._waiting.popleft()
            taken.append(entry(offset))
        return tuple(taken)

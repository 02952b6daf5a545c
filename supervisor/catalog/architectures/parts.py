"""What a model keeps per row while it generates: keys and values that grow, and states that don't.

The sizes are those of mlx-lm's cache objects (`mlx_lm/models/cache.py`), which is what a worker holds.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

GROWTH_TOKENS: Final = 256
"""Caches grow in steps of so many tokens."""


class Keys(msgspec.Struct, frozen=True):
    """Keys and values of one layer: `width` elements for every token of a row.

    With a `window` at most so many tokens are kept: in a ring, or `chunked`, cut to the window and grown
    again at every step.
    """

    width: int
    window: int | None = None
    chunked: bool = False

    def tokens_held(self, tokens: int) -> int:
        """Tokens that there is room for after a prompt and a few generated tokens, together `tokens`."""
        stepped = -(-tokens // GROWTH_TOKENS) * GROWTH_TOKENS
        if self.window is None:
            return stepped
        if self.chunked:
            return min(stepped, self.window + GROWTH_TOKENS)
        # A ring takes the prompt as it is and grows by a step with the first generated token.
        return min(tokens + GROWTH_TOKENS - 1, self.window)

    def prefill_tokens(self, tokens: int, step: int) -> int:
        """Tokens held beyond `tokens_held` while a prompt is computed in chunks of `step`."""
        if self.window is None or self.chunked:
            return 0
        # Every token of the chunk must see a whole window, so chunk and window are held together.
        return max(0, min(tokens, self.window - 1 + step) - self.tokens_held(tokens))


class State(msgspec.Struct, frozen=True):
    """Fixed state of one layer: `elements` in the model's dtype, `wide` ones in float32."""

    elements: int
    wide: int = 0


Part = Keys | State


class Layers(msgspec.Struct, frozen=True):
    """So many layers that keep the same."""

    count: int
    keys: Keys


class CacheLayout(msgspec.Struct, frozen=True):
    """What one row keeps in all layers together. Its methods return bytes."""

    grows: tuple[Layers, ...]
    state: State
    layers: int
    """Layers of the model, whether they keep anything or not."""
    known: bool = True
    """False for an architecture that is not in our table: then a careful guess."""
    at_once: bool = False
    """Whether a text is computed whole and nothing of it is kept: encoders."""

    @classmethod
    def of(
        cls, parts: Iterable[Part], *, layers: int, known: bool = True, at_once: bool = False
    ) -> "CacheLayout":
        counts: Counter[Keys] = Counter()
        elements = wide = 0
        for part in parts:
            if isinstance(part, Keys):
                counts[part] += 1
            else:
                elements += part.elements
                wide += part.wide
        grows = tuple(Layers(count, keys) for keys, count in counts.items() if keys.width)
        return cls(grows, State(elements, wide), layers, known, at_once)

    @property
    def bounded(self) -> bool:
        """Whether a row stops growing at some length."""
        return all(group.keys.window is not None for group in self.grows)

    def keys_bytes(self, tokens: int, *, rows: int = 1, itemsize: int = 2) -> int:
        """Keys and values of `rows` rows with `tokens` each. Shorter rows of a batch are padded."""
        held = sum(group.count * group.keys.width * group.keys.tokens_held(tokens) for group in self.grows)
        return held * itemsize * rows

    def state_bytes(self, *, rows: int = 1, itemsize: int = 2) -> int:
        return (self.state.elements * itemsize + self.state.wide * 4) * rows

    def tokens_seen(self, tokens: int, step: int) -> int:
        """The longest stretch that a layer attends to while a prompt of `tokens` is computed."""
        if self.at_once:
            return tokens
        return max((min(tokens, (keys.window or tokens) + step) for keys in self._keys()), default=0)

    def _keys(self) -> Iterable[Keys]:
        return (group.keys for group in self.grows)

    def prefill_bytes(self, tokens: int, step: int, *, rows: int = 1, itemsize: int = 2) -> int:
        """What windowed layers hold beyond `keys_bytes` while prompts are computed."""
        extra = sum(
            group.count * group.keys.width * group.keys.prefill_tokens(tokens, step) for group in self.grows
        )
        return extra * itemsize * rows

    def read_bytes(self, tokens: int, *, itemsize: int = 2) -> int:
        """What one decode step of one row reads: its tokens, without the room to grow, and its state."""
        read = sum(
            group.count * group.keys.width * min(tokens, group.keys.window or tokens) for group in self.grows
        )
        return read * itemsize + self.state_bytes(itemsize=itemsize)

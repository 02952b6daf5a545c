"""What the rows of this model hold, measured on the loaded model, and how much there may be of it."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import msgspec
import psutil
from mlx_lm.models.cache import CacheList, make_prompt_cache

_MEASURED: Final = 8
"""Tokens of the prompt that is measured with: more than one, so that no cache takes it for decoding."""
_STEP: Final = 256
"""Tokens by which mlx-lm's caches grow."""
_SHARE_OF_RAM: Final = 0.75
"""Where the GPU has no working set of its own."""
_RESERVE: Final = 0.05
"""Of the cap, for what is computed and dropped again."""
_PROMPT_SHARE: Final = 0.25
"""Of what the weights leave, for the prompt cache. Rows that need it take it back."""
LEAST_BYTES: Final = 64 * 2**20
"""For rows there is so much at least, where nobody could be asked for more."""
_MOST_PROMPTS: Final = 16 * 2**30


class Needs(msgspec.Struct, frozen=True):
    """What one row's caches hold."""

    token_bytes: int = 0
    """For each token."""
    fixed_bytes: int = 0
    """However long it is."""
    windows: tuple[tuple[int, int], ...] = ()
    """Caches that hold the last tokens alone: how many, and bytes for each."""
    draft: "Needs | None" = None
    """What the draft holds, of one row at a time."""

    @property
    def cuttable(self) -> bool:
        """Whether state can be cut back to any shorter prefix."""
        return not self.fixed_bytes and not self.windows

    def row_bytes(self, tokens: int) -> int:
        """Bytes of one row with so many tokens."""
        grown = -(-tokens // _STEP) * _STEP
        return (
            self.fixed_bytes
            + self.token_bytes * grown
            + sum(size * min(grown, window) for window, size in self.windows)
        )

    def batch_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of rows with so many tokens each: in a batch all are padded to the longest."""
        if not lengths:
            return 0
        draft = 0 if self.draft is None else self.draft.row_bytes(max(lengths))
        return draft + len(lengths) * self.row_bytes(max(lengths))

    def tokens_in(self, size_bytes: int, most: int) -> int:
        """Tokens that a row may have that runs alone in so many bytes, `most` at most."""
        steps = range(1, -(-most // _STEP) + 1)
        fitting = bisect_right(steps, size_bytes, key=lambda step: self.batch_bytes([step * _STEP]))
        return min(most, fitting * _STEP)


def measure(network: Any) -> Needs:
    """Run a few tokens through `network` and look at what its caches hold."""
    state = make_prompt_cache(network)
    # Shapes tell: nothing of this is ever computed.
    network(mx.array([[0] * _MEASURED]), cache=state)
    token_bytes = fixed_bytes = 0
    windows: dict[int, int] = {}
    for layer in _leaves(state):
        keys = getattr(layer, "keys", None)
        held = int(layer.nbytes)
        if keys is None:
            fixed_bytes += held
            continue
        # Not what was filled: some caches grow by many tokens at once.
        size = -(-held // int(keys.shape[2]))
        window = getattr(layer, "max_size", None)
        if isinstance(window, int):
            windows[window] = windows.get(window, 0) + size
        else:
            token_bytes += size
    return Needs(token_bytes, fixed_bytes, tuple(sorted(windows.items())))


def _leaves(state: Sequence[Any]) -> Iterator[Any]:
    for layer in state:
        if isinstance(layer, CacheList):
            yield from _leaves(layer.caches)
        else:
            yield layer


class Room(msgspec.Struct, frozen=True):
    """Bytes that a worker may use beside its weights."""

    kv_bytes: int
    """Caches of running rows; the prompt cache makes way for them."""
    prompt_bytes: int
    """The prompt cache."""
    pass_bytes: int
    """What one step computes with and drops again."""


def cap_for(rows_bytes: int, fixed_bytes: int) -> int:
    """What a worker must be allowed to take, so that there is `room` for rows of so many bytes."""
    cap_bytes = math.ceil((rows_bytes + fixed_bytes) / (1 - _RESERVE))
    while int((1 - _RESERVE) * cap_bytes) - fixed_bytes < rows_bytes:
        cap_bytes += 1
    return cap_bytes


def room(
    *,
    weights_bytes: int,
    working_set_bytes: int,
    cap_bytes: int | None = None,
    prompt_bytes: int | None = None,
    ram_bytes: int | None = None,
    least_bytes: int = LEAST_BYTES,
) -> Room:
    """Divide up what the worker may hold: `cap_bytes`, or the GPU's working set, or a share of RAM.

    `weights_bytes` are all that it holds without rows, which get `least_bytes` even where that is too much.
    """
    if cap_bytes is None:
        total = int(psutil.virtual_memory().total) if ram_bytes is None else ram_bytes
        cap_bytes = working_set_bytes or int(_SHARE_OF_RAM * total)
    left = max(least_bytes, int((1 - _RESERVE) * cap_bytes) - weights_bytes)
    if prompt_bytes is None:
        prompt_bytes = min(left, _MOST_PROMPTS, max(LEAST_BYTES, int(_PROMPT_SHARE * left)))
    return Room(kv_bytes=left, prompt_bytes=prompt_bytes, pass_bytes=int(_RESERVE * cap_bytes))

"""Taking back the last tokens of a network's state, as checking a draft's proposals needs it."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from mlx_lm.models.cache import (
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

_REWINDABLE: Final = (KVCache, RotatingKVCache)
"""Of one row; in a batch they become BatchKVCache and BatchRotatingKVCache."""


def leaves(state: Sequence[Any]) -> Iterator[Any]:
    """The caches in `state`, those in lists of caches too."""
    for layer in state:
        if isinstance(layer, CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def unrewindable(network: Any) -> list[str]:
    """Names of the kinds of cache of `network` that can't take tokens back: recurrent state, mostly."""
    kinds = {type(layer) for layer in leaves(make_prompt_cache(network))}
    return sorted(kind.__name__ for kind in kinds if kind not in _REWINDABLE)


def rewind(state: Sequence[Any], tokens: int) -> None:
    """Take back the last `tokens` of a batch's caches, which must all have come in the last forward pass,
    and not be all that came in it."""
    if not tokens:
        return
    for layer in leaves(state):
        if isinstance(layer, BatchRotatingKVCache):
            # A pass over several tokens leaves a window's length before the last of them, so what is left
            # is what a pass over the first of them alone would have left. mlx-lm's own trim would leave the
            # arrays as they are, and a full window would then begin to overwrite in the wrong place.
            layer.keys = layer.keys[..., :-tokens, :]
            layer.values = layer.values[..., :-tokens, :]
            layer._idx -= tokens
            layer._offset -= tokens
            layer.offset = layer.offset - tokens
        else:
            assert isinstance(layer, BatchKVCache), type(layer).__name__
            layer.trim(tokens)

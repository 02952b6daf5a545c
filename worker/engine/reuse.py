"""What the rows of a batch take from the prompt cache, and what they leave in it.

Everything here runs on the engine's thread. State is taken out of the batch as mlx-lm gives it, unevaluated;
`settle` computes it between two steps, because a copy that is computed later would keep the batch from
changing its own arrays in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, make_prompt_cache

from worker.engine.generator import END
from worker.engine.prompt_cache import (
    SHORTEST,
    Entry,
    Hit,
    PromptCache,
    Tokens,
    as_tokens,
    common_prefix,
    trimmed,
)
from worker.engine.rows import Row


@dataclass
class _Begun:
    """A row in the generator."""

    row: Row
    prompt: Tokens
    cached: int
    wanted: set[int]
    """Positions at which its state is kept."""
    decoding: bool = False


@dataclass
class _Taken:
    row: Row
    tokens: Tokens
    state: list[Any] = field(repr=False)
    to_go_on: bool = False
    """The row stopped for want of memory."""


class Reuse:
    """For one batch."""

    def __init__(self, cache: PromptCache, network: Any) -> None:
        self.cache = cache
        # State of these kinds can always be cut back to any shorter prefix, so there is nothing to keep of
        # a prompt before its row is over.
        self._needs_snapshots = not all(map(_always_trimmable, make_prompt_cache(network)))
        self._begun: dict[int, _Begun] = {}
        self._taken: list[_Taken] = []
        self._told: list[tuple[int, int]] = []

    def find(self, row: Row, generator: BatchGenerator) -> Hit | None:
        """State that `row` can begin with, of an earlier row or of one that runs."""
        prompt = as_tokens(row.prompt)
        # Whoever asks the same again is to get the same, to the last bit: its end is computed as it was then.
        last_cut = max(self._positions(row, 0), default=0)
        by_one = row.family is not None or row.said > 0
        end = 1 if by_one else min(END, len(prompt) - last_cut)
        found = self.cache.reusable(prompt, row.adapter)
        living = None if self._needs_snapshots else self._living(prompt, row, longer_than=found, end=end)
        if living is not None:
            uid, length = living
            state, tokens = generator.extract_cache([uid])[uid]
            self.cache.note_living(length)
            return Hit(length, trimmed(state, len(tokens) - length))
        hit = self.cache.find(prompt, adapter=row.adapter, session=row.session, end=end)
        if row.said:
            # What it left may be more than is kept of a row that is over.
            self.cache.shrink(self.cache.limit_bytes)
        return hit

    def _living(self, prompt: Tokens, row: Row, *, longer_than: int, end: int) -> tuple[int, int] | None:
        best, length = None, max(longer_than, SHORTEST)
        for uid, begun in self._begun.items():
            if begun.decoding and begun.row.adapter == row.adapter:
                common = common_prefix(begun.prompt, prompt[:-1])
                if common > length:
                    best, length = uid, common
        if best is None:
            return None
        if length == len(prompt) - 1:
            length = len(prompt) - end
        return (best, length) if length >= SHORTEST else None

    def segments(self, row: Row, cached: int) -> list[list[int]]:
        """The tokens of `row` after the first `cached`, cut where its state is to be kept."""
        cuts = [cached, *self._positions(row, cached), len(row.prompt)]
        return [row.prompt[start:end] for start, end in pairwise(cuts)]

    def begin(self, uid: int, row: Row, cached: int, *, shared: bool = False) -> None:
        """`row` is in the generator, `cached` of its tokens need no computing; with `shared` because they
        were computed for another answer to the same request. Of one that goes on it was told before."""
        wanted = set(self._positions(row, cached))
        self._begun[uid] = _Begun(row, as_tokens(row.prompt), cached, wanted)
        if not shared and not row.said:
            self._told.append((row.id, cached))

    def _positions(self, row: Row, cached: int) -> list[int]:
        if not self._needs_snapshots:
            return []
        floor = max(cached, SHORTEST - 1)
        return sorted({cut for cut in row.boundaries if floor < cut < len(row.prompt)})

    def told(self) -> list[tuple[int, int]]:
        """Rows that have begun since the last call, and how many tokens of each prompt were there."""
        told, self._told = self._told, []
        return told

    def progressed(self, prompts: list[Any], generator: BatchGenerator) -> None:
        """Pieces of prompt were computed."""
        for piece in prompts:
            begun = self._begun.get(piece.uid)
            if begun is None:
                continue
            if piece.end_of_prompt:
                begun.decoding = True
            elif piece.end_of_segment and begun.cached + piece.progress[0] in begun.wanted:
                state, tokens = generator.extract_cache([piece.uid])[piece.uid]
                self._take(begun.row, tokens, state)

    def ended(self, uid: int, tokens: list[int], state: list[Any], *, by_length: bool) -> None:
        """A row has generated its last token, or maybe, `by_length`, the last that there was memory for."""
        begun = self._begun.pop(uid, None)
        if begun is not None:
            # The last one may have been said before anything was computed on it.
            to_go_on = by_length and len(tokens) + 1 < begun.row.whole
            self._take(begun.row, tokens, state, to_go_on=to_go_on)

    def removed(self, uid: int, generator: BatchGenerator) -> None:
        """A row is about to be taken out; what was computed for it serves whoever asks the same again."""
        begun = self._begun.pop(uid, None)
        if begun is None or not begun.decoding:
            # In the middle of its prompt it may hold caches that nothing was written to yet.
            return
        state, tokens = generator.extract_cache([uid])[uid]
        self._take(begun.row, tokens, state)

    def _take(self, row: Row, tokens: list[int], state: list[Any], *, to_go_on: bool = False) -> None:
        if len(tokens) >= SHORTEST:
            self._taken.append(_Taken(row, as_tokens(tokens), state, to_go_on))

    @property
    def pending(self) -> bool:
        """Whether there is something to settle."""
        return bool(self._taken)

    def sizes(self) -> list[int]:
        """What there is to settle, in bytes each."""
        return [sum(int(layer.nbytes) for layer in item.state) for item in self._taken]

    def settle(self, sizes: Sequence[int] | None = None) -> None:
        """Compute what was taken and put it into the cache. Call it before the next step.

        With `sizes` each counts for so much, whatever it takes here.
        """
        sizes = self.sizes() if sizes is None else sizes
        taken, self._taken = self._taken, []
        for item, nbytes in zip(taken, sizes, strict=True):
            row = item.row
            if self.cache.wants(
                item.tokens, nbytes, adapter=row.adapter, session=row.session, to_go_on=item.to_go_on
            ):
                for layer in item.state:
                    _detach(layer)
                mx.eval([layer.state for layer in item.state])
                entry = Entry(item.tokens, item.state, row.adapter, row.session)
                entry.nbytes = nbytes
                self.cache.put(entry, to_go_on=item.to_go_on)

    def reset(self) -> None:
        """The generator's state is unknown: nothing of it may be kept."""
        self._begun.clear()
        self._taken.clear()


def _always_trimmable(layer: Any) -> bool:
    if isinstance(layer, CacheList):
        return all(map(_always_trimmable, layer.caches))
    return type(layer) is KVCache


def _detach(layer: Any) -> None:
    """Let go of the batch's arrays: states of fixed size come as views into those of all rows."""
    if isinstance(layer, CacheList):
        for part in layer.caches:
            _detach(part)
    elif isinstance(layer, ArraysCache):
        layer.cache = [None if array is None else mx.contiguous(array) for array in layer.cache]

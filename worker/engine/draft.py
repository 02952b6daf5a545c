"""The draft: a small network that guesses what a large one says next. It is read to, and proposes.

Everything here runs on the engine's thread.
"""

import copy
import time
from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import KVCache, can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from worker.engine.pace import Pace
from worker.engine.prompt_cache import as_tokens, common_prefix
from worker.engine.rewind import leaves

CLOSE: Final = 16
"""Tokens that it may be behind and still propose at once."""

Choose = Callable[[Any, Any, int], Any]
"""(1, vocabulary) logits, the proposals before them or None, and how many tokens after the last certain one
they are for: to (1,) tokens."""


class Draft:
    """The network and what it has read of one row; the next row begins with what is the same in both.

    `width` is that of the large network's logits, `own_width` that of the draft's: it proposes only tokens
    that both know. It reads no more than `context` tokens.
    """

    def __init__(
        self, network: Any, *, width: int, own_width: int, context: int, prefill_step: int = 512
    ) -> None:
        self.context = context
        self._network = network
        self._width = width
        self._own_width = own_width
        self._pace = Pace(prefill_step)
        self._row: list[int] = []
        """The tokens of the row that it follows; whoever generates them adds to this very list."""
        self.reset()

    def reset(self) -> None:
        """Forget all it has read."""
        self._state = make_prompt_cache(self._network)
        # Only such state can always be cut back; of others a copy is kept while proposals are checked.
        self._cuttable = all(type(layer) is KVCache for layer in leaves(self._state))
        self._kept: tuple[int, list[Any]] | None = None
        self._read = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its KV cache."""
        return sum(int(layer.nbytes) for layer in self._state)

    def behind(self, row: list[int]) -> int:
        """How many tokens of `row` it has not read yet; from now on it follows this row."""
        if row is not self._row:
            common = common_prefix(as_tokens(self._row[: self._read]), as_tokens(row))
            self._cut(self._read - common)
            self._row = row
        return len(row) - self._read

    def read(self, most: int) -> None:
        """Read some more of the row, `most` tokens at most, without stalling it for long."""
        count = min(most, self._pace.tokens)
        started = time.monotonic()
        tokens = self._known(self._row[self._read : self._read + count])
        self._network(mx.array([tokens]), cache=self._state)
        mx.eval([layer.state for layer in self._state])
        self._pace.took(count, time.monotonic() - started)
        self._read += count

    def propose(self, last: Any, count: int, choose: Choose) -> Any:
        """`count` (1,) tokens that may follow the row and, after it, `last`, a (1,) token."""
        unread = self._known(self._row[self._read :])
        inputs = mx.where(last < self._own_width, last, 0)
        if unread:
            inputs = mx.concatenate([mx.array(unread, dtype=inputs.dtype), inputs])
        proposed: list[Any] = []
        for ahead in range(count):
            logits = self._network(inputs[None], cache=self._state)[:, -1, :]
            if ahead == 0 and count > 1 and not self._cuttable:
                self._kept = (len(self._row) + 1, copy.deepcopy(self._state))
            before = mx.concatenate(proposed) if proposed else None
            inputs = choose(self._fitted(logits), before, ahead)
            mx.async_eval(inputs)  # type: ignore[no-untyped-call]
            proposed.append(inputs)
        self._read = len(self._row) + count
        return mx.concatenate(proposed)

    def settle(self) -> None:
        """The row has what of the proposals was right: forget the rest."""
        self._cut(self._read - len(self._row))
        self._kept = None

    def _cut(self, tokens: int) -> None:
        if tokens <= 0:
            return
        if self._kept is not None and self._kept[0] <= self._read - tokens:
            self._read, self._state = self._kept
        elif can_trim_prompt_cache(self._state):
            trim_prompt_cache(self._state, tokens)
            self._read -= tokens
        else:
            self.reset()

    def _fitted(self, logits: Any) -> Any:
        """As wide as the large network's: the same random numbers then mean the same tokens."""
        missing = self._width - logits.shape[-1]
        if missing > 0:
            return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
        return logits[:, : self._width]

    def _known(self, tokens: list[int]) -> list[int]:
        """Token ids that it has an embedding for: others would be read from outside of it."""
        return [token if token < self._own_width else 0 for token in tokens]

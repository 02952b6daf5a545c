"""One batch on several ranks: rank 0 leads, the others follow.

Rank 0 alone chooses tokens, with whatever its rows ask for. It then gives them to the others in a sum to
which these add nothing, so that no rounding and no seed can make two ranks go on with different tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from worker.engine.batch import Batch
from worker.engine.constraint_batch import ConstrainedRows
from worker.engine.generator import Prompts, RowGenerator
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Output, Row
from worker.shard.orders import Allow, Forget, Insert, Order, Remove, Resize, Settle, Shrink, Step


class LeadingRows(ConstrainedRows):
    always_own = True

    def _sampled(self, logprobs: Any) -> Any:
        return mx.distributed.all_sum(super()._sampled(logprobs).astype(mx.uint32))


class LeadingPrompts(Prompts):
    rows = LeadingRows


class LeadingGenerator(RowGenerator):
    prompts = LeadingPrompts


class FollowingRows(ConstrainedRows):
    def _step(self) -> tuple[list[int], list[Any]]:
        if self.is_last:
            return self._say_last()
        inputs = self._current_tokens = self._next_tokens
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        # All ranks must compute all sums, in the same order: this one waits for those of the layers.
        nothing = mx.depends(mx.zeros((len(self.uids),), dtype=mx.uint32), logits)
        self._next_tokens = mx.distributed.all_sum(nothing)
        self._next_logprobs = self._current_logprobs = [None] * len(self.uids)
        mx.async_eval(self._next_tokens)  # type: ignore[no-untyped-call]
        mx.eval(inputs)
        tokens: list[int] = inputs.tolist()
        for row, token in zip(self.tokens, tokens, strict=True):
            row.append(token)
        return tokens, self._current_logprobs


class FollowingPrompts(Prompts):
    rows = FollowingRows


class FollowingGenerator(RowGenerator):
    prompts = FollowingPrompts


class LeadingBatch(Batch):
    """Rank 0's. It tells the others what it is about to do; a clock that all read alike is `clock`."""

    generator = LeadingGenerator

    def __init__(
        self, network: Any, *arguments: Any, tell: Callable[[Order], None], clock: "Clock", **options: Any
    ) -> None:
        self._tell_others = tell
        self._clock = clock
        self._planned = 0
        super().__init__(network, *arguments, **options)

    def insert(self, row: Row) -> None:
        self._tell_others(
            Insert(
                self._clock.advance(),
                row.id,
                row.prompt,
                row.max_tokens,
                row.ignore_eos,
                row.stop_tokens,
                row.family,
                row.session,
                row.boundaries,
                row.said,
                row.whole,
            )
        )
        super().insert(row)

    def allow(self, row: int, tokens: int) -> None:
        self._tell_others(Allow(row, tokens))
        super().allow(row, tokens)

    def remove(self, row: int) -> bool:
        self._tell_others(Remove(self._clock.advance(), row))
        return super().remove(row)

    def forget(self, family: int) -> None:
        self._tell_others(Forget(self._clock.advance(), family))
        super().forget(family)

    def step(self) -> list[Output]:
        self.settle()
        # How much of a prompt one step computes is learned from time, which passes differently elsewhere.
        self._planned = super()._chunk() if self._prefilling else 1
        self._tell_others(Step(self._clock.advance(), self._planned))
        return super().step()

    def settle(self) -> None:
        if self._reuse.pending:
            self._tell_others(Settle(self._clock.advance(), tuple(self._reuse.sizes())))
        super().settle()

    def _chunk(self) -> int:
        return self._planned

    def reset(self) -> list[int]:
        # The other ranks may be in the middle of the step that failed here.
        raise RuntimeError("a step of a model on several machines failed; they have to start anew")


class FollowingBatch(Batch):
    """Any other rank's: does what it is told."""

    generator = FollowingGenerator
    chunk = 1

    def _chunk(self) -> int:
        return self.chunk

    def settle_as(self, sizes: Sequence[int]) -> None:
        """As `settle`; each counts for as much as it does with rank 0."""
        self._reuse.settle(sizes)


class Clock:
    """Seconds as rank 0 last told them: all ranks judge alike what was used longest ago."""

    def __init__(self, source: Callable[[], float] = lambda: 0.0) -> None:
        self._source = source
        self.now = 0.0

    def advance(self) -> float:
        self.now = self._source()
        return self.now

    def __call__(self) -> float:
        return self.now


class LeadingCache(PromptCache):
    """Rank 0's prompt cache: the others evict what it evicts."""

    def __init__(self, limit_bytes: int, *, tell: Callable[[Order], None], clock: Clock) -> None:
        super().__init__(limit_bytes, clock=clock)
        self._tell_others = tell
        self._shared_clock = clock

    def resize(self, limit_bytes: int) -> None:
        self._tell_others(Resize(self._shared_clock.advance(), limit_bytes))
        super().resize(limit_bytes)

    def shrink(self, to_bytes: int) -> int:
        # To its limit each shrinks by itself, whenever something is put in or the limit changes.
        if to_bytes != self.limit_bytes:
            self._tell_others(Shrink(self._shared_clock.advance(), to_bytes))
        return super().shrink(to_bytes)

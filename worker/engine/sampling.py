"""Samplers: log probabilities of one step to tokens.

Rows that want the same share one sampler object, because the batch is sampled in a single call when all its
rows have the same one. A seeded row has its own, which draws with a key made of the seed and the position:
its text depends neither on the rows beside it nor on what ran before.
"""

from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx
import msgspec
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, greedy_sampler, make_sampler

from worker.request import Sampling

Sampler = Callable[[Any], Any]
"""(rows, vocabulary) log probabilities to (rows,) tokens."""

_MASK: Final = 2**64 - 1
_KEPT: Final = 256
"""Distinct samplers kept for reuse."""


def key_words(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words that are a random key for this seed and position.

    Source: the mixing function of SplitMix64 (Steele, Lea, Flood 2014), over seed and position.
    """
    mixed = _mix(_mix(seed & _MASK) + position)
    return mixed >> 32, mixed & 0xFFFFFFFF


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class SeededSampler:
    """The sampler of one row with a seed. Called once per position, in order."""

    def __init__(self, sampling: Sampling, *, vocabulary: int) -> None:
        assert sampling.seed is not None
        self._seed = sampling.seed
        self._position = 0
        self._sampling = _bounded(sampling, vocabulary)

    def __call__(self, logprobs: Any) -> Any:
        sampling = self._sampling
        # The filters and their order are mlx-lm's, so that a seed changes nothing but the draw.
        if 0 < sampling.top_p < 1:
            logprobs = apply_top_p(logprobs, sampling.top_p)
        if sampling.min_p > 0:
            logprobs = apply_min_p(logprobs, sampling.min_p)
        if sampling.top_k > 0:
            logprobs = apply_top_k(logprobs, sampling.top_k)
        key = mx.array(key_words(self._seed, self._position), dtype=mx.uint32)
        self._position += 1
        return mx.random.categorical(logprobs * (1 / sampling.temperature), key=key)


class Samplers:
    """Gives each row its sampler. `vocabulary` is the width of the logits."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._shared: dict[Sampling, Sampler] = {}

    def of(self, sampling: Sampling) -> Sampler:
        if sampling.greedy:
            return greedy_sampler  # type: ignore[no-any-return]
        if sampling.seed is not None:
            return SeededSampler(sampling, vocabulary=self._vocabulary)
        sampling = _bounded(sampling, self._vocabulary)
        sampler = self._shared.get(sampling)
        if sampler is None:
            if len(self._shared) >= _KEPT:
                del self._shared[next(iter(self._shared))]
            sampler = self._shared[sampling] = make_sampler(
                temp=sampling.temperature,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                top_k=sampling.top_k,
            )
        return sampler


def _bounded(sampling: Sampling, vocabulary: int) -> Sampling:
    # Keeping as many tokens as there are filters nothing, and mlx-lm raises for it in the middle of a step.
    if sampling.top_k >= vocabulary:
        return msgspec.structs.replace(sampling, top_k=0)
    return sampling

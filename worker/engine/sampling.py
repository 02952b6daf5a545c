"""Samplers: log probabilities of one step to tokens.

Rows that want the same share one sampler object, because the batch is sampled in a single call when all its
rows have the same one. A seeded row has its own, which draws with a key made of the seed and the position:
its text depends neither on the rows beside it nor on what ran before.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
import msgspec
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, greedy_sampler, make_sampler

from worker.request import Sampling

Sampler = Callable[[Any], Any]
"""(rows, vocabulary) log probabilities to (rows,) tokens."""

_MASK: Final = 2**64 - 1
_XTC: Final = 0x585443
"""Mixed into a seed for the draws of xtc, which must not be those of the tokens."""
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


def seed_of(seed: int | None, index: int) -> int | None:
    """The seed of the answer with this index, when several are wanted; the first has the request's own."""
    if seed is None or index == 0:
        return seed
    return _mix(_mix(seed & _MASK) + index)


def apply_xtc(logprobs: Any, sampling: Sampling, spared: Any, draws: Any) -> Any:
    """Now and then leave out all tokens above the threshold but the least likely of them.

    `spared` are tokens that are never left out; `draws` are uniform in [0, 1), one for each row, (rows, 1).
    Source: the "exclude top choices" sampler as mlx-lm has it, which draws once for all rows.
    """
    probabilities = mx.softmax(logprobs, axis=-1)
    likely = probabilities > sampling.xtc_threshold
    least = mx.where(likely, probabilities, mx.inf).min(axis=-1, keepdims=True)
    out = (probabilities > least) & (draws < sampling.xtc_probability) & ~spared
    return mx.where(out, -mx.inf, logprobs)


class OwnSampler:
    """What mlx-lm's sampler does, with draws of our own: with a seed, and with xtc for each row apart.

    With a seed it is for one row alone and is called once per position, in order, or asked by position.
    """

    def __init__(self, sampling: Sampling, *, vocabulary: int, spared: Sequence[int] = ()) -> None:
        self._seed = sampling.seed
        self.position = 0
        """Of the next draw, from the row's first token on."""
        self._sampling = _bounded(sampling, vocabulary)
        mask = mx.zeros((vocabulary,), dtype=mx.bool_)
        if spared:
            mask[mx.array(list(spared))] = True
        self._spared = mask

    def __call__(self, logprobs: Any) -> Any:
        tokens = self.draw(logprobs, self.position)
        self.position += 1
        return tokens

    def draw(self, logprobs: Any, position: int) -> Any:
        """What is drawn at `position`: with a seed always the same for the same log probabilities, and for
        others the token that the same random numbers favour."""
        sampling = self._sampling
        # The filters and their order are mlx-lm's, so that a seed changes nothing but the draw.
        if 0 < sampling.top_p < 1:
            logprobs = apply_top_p(logprobs, sampling.top_p)
        if sampling.min_p > 0:
            logprobs = apply_min_p(logprobs, sampling.min_p)
        if sampling.xtc_probability > 0:
            draws = mx.random.uniform(shape=(logprobs.shape[0], 1), key=self._key(_XTC, position))
            logprobs = apply_xtc(logprobs, sampling, self._spared, draws)
        if sampling.top_k > 0:
            logprobs = apply_top_k(logprobs, sampling.top_k)
        key = self._key(0, position)
        return mx.random.categorical(logprobs * (1 / sampling.temperature), key=key)

    def _key(self, purpose: int, position: int) -> Any:
        if self._seed is None:
            return None
        return mx.array(key_words(self._seed ^ purpose, position), dtype=mx.uint32)


class Samplers:
    """Gives each row its sampler. `vocabulary` is the width of the logits.

    `spared` are the tokens that xtc never leaves out: without the end and the line break answers ramble.
    """

    def __init__(self, vocabulary: int, spared: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._spared = [token for token in spared if token < vocabulary]
        self._shared: dict[Sampling, Sampler] = {}

    def of(self, sampling: Sampling, *, position: int = 0) -> Sampler:
        """The sampler of a row whose next token is the one at `position` of what it says."""
        if sampling.greedy:
            return greedy_sampler  # type: ignore[no-any-return]
        if sampling.seed is not None:
            sampler = self._own(sampling)
            sampler.position = position
            return sampler
        # Rows that differ only in what processors do share one all the same.
        sampling = _bounded(
            Sampling(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                xtc_probability=sampling.xtc_probability,
                xtc_threshold=sampling.xtc_threshold,
            ),
            self._vocabulary,
        )
        shared = self._shared.get(sampling)
        if shared is None:
            if len(self._shared) >= _KEPT:
                del self._shared[next(iter(self._shared))]
            shared = self._shared[sampling] = self._new(sampling)
        return shared

    def seeded(self, sampling: Sampling) -> OwnSampler | None:
        """One that draws by position, for one row, with a seed even where it has none; None for greedy."""
        if sampling.greedy:
            return None
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(64))
        return self._own(sampling)

    def _new(self, sampling: Sampling) -> Sampler:
        if sampling.xtc_probability > 0:
            return self._own(sampling)
        return make_sampler(  # type: ignore[no-any-return]
            temp=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k
        )

    def _own(self, sampling: Sampling) -> OwnSampler:
        return OwnSampler(sampling, vocabulary=self._vocabulary, spared=self._spared)


def _bounded(sampling: Sampling, vocabulary: int) -> Sampling:
    # Keeping as many tokens as there are filters nothing, and mlx-lm raises for it in the middle of a step.
    if sampling.top_k >= vocabulary:
        return msgspec.structs.replace(sampling, top_k=0)
    return sampling

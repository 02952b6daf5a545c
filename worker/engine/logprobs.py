"""Log probabilities of the rows that ask for them, of one step together."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from worker.text.logprobs import Scored


def scored(rows: list[tuple[Any, int, int]]) -> list[Scored]:
    """For each row's (vocabulary,) log probabilities, chosen token and number of alternatives wanted."""
    logprobs, tokens, counts = zip(*rows, strict=True)
    return scored_rows(mx.stack(list(logprobs)), tokens, counts)


def scored_rows(logprobs: Any, tokens: Sequence[int], counts: Sequence[int]) -> list[Scored]:
    """As `scored`, for (rows, vocabulary).

    Only what is told leaves the engine: one evaluation for all rows, and never the whole vocabulary.
    """
    logprobs = logprobs.astype(mx.float32)
    chosen: Any = mx.take_along_axis(logprobs, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    most = min(max(counts), logprobs.shape[-1])
    if most == 0:
        return [Scored(value, ()) for value in chosen.tolist()]
    best: Any = mx.argpartition(-logprobs, kth=most - 1, axis=-1)[:, :most]
    best_values: Any = mx.take_along_axis(logprobs, best, axis=-1)
    mx.eval(chosen, best, best_values)
    told = zip(chosen.tolist(), best.tolist(), best_values.tolist(), counts, strict=True)
    return [
        Scored(value, tuple(sorted(zip(ids, values, strict=True), key=_likeliest)[:count]))
        for value, ids, values, count in told
    ]


def _likeliest(alternative: tuple[int, float]) -> tuple[float, int]:
    token, logprob = alternative
    return -logprob, token

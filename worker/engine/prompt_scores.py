"""How likely each token of a prompt was, given those before it. Runs on the engine's thread, in slices."""

import time
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.jobs import Work
from worker.engine.logprobs import scored_rows
from worker.engine.pace import Pace
from worker.text.logprobs import Scored

_LOGITS: Final = 2**25
"""Numbers in the logits of one slice."""


def score_prompt(network: Any, tokens: Sequence[int], *, alternatives: int, step: int) -> Work[list[Scored]]:
    """Scores for all tokens but the first, which has nothing before it.

    One slice computes `step` tokens at most.
    """
    cache = make_prompt_cache(network)
    pace = Pace(step)
    scores: list[Scored] = []
    most = 16  # until the width of the logits is known
    while len(scores) < len(tokens) - 1:
        start = len(scores)
        size = min(pace.tokens, most, len(tokens) - 1 - start)
        began = time.monotonic()
        logits = network(mx.array([tokens[start : start + size]]), cache=cache)[0].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        scores += scored_rows(logprobs, tokens[start + 1 : start + 1 + size], [alternatives] * size)
        mx.eval([layer.state for layer in cache])
        pace.took(size, time.monotonic() - began)
        most = max(1, _LOGITS // logits.shape[-1])
        yield
    return scores

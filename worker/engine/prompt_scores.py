"""How likely each token of a prompt was, given those before it. Runs on the engine's thread, in slices.

Scores of the last few prompts are remembered, so that prompts that begin alike, as those of an evaluation's
questions do, are computed from where they differ. The state goes to the prompt cache: an answer that follows
begins with it.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import msgspec

from worker.engine.jobs import Work
from worker.engine.logprobs import scored_rows
from worker.engine.pace import Pace
from worker.engine.prefixes import Prefixes
from worker.engine.prompt_cache import SHORTEST, PromptCache, Tokens, as_tokens, common_prefix
from worker.text.logprobs import Scored

_LOGITS: Final = 2**25
"""Numbers in the logits of one slice."""
_REMEMBERED: Final = 2**18
"""Numbers in all remembered scores, alternatives included."""


class PromptScores(msgspec.Struct, frozen=True):
    """Scores of all tokens but the first, which has nothing before it."""

    scores: list[Scored]
    cached: int
    """Tokens of the prompt that needed no computing."""


class _Known(msgspec.Struct, frozen=True):
    tokens: Tokens
    adapter: str
    alternatives: int
    scores: list[Scored]

    @property
    def numbers(self) -> int:
        return len(self.scores) * (1 + self.alternatives)


class PromptScorer:
    """For one loaded model."""

    def __init__(self, network: Any, *, prefill_step: int, prompts: PromptCache | None = None) -> None:
        """One slice computes `prefill_step` tokens at most."""
        self._network = network
        self._pace = Pace(prefill_step)
        self._prefixes = Prefixes(network, prompts)
        self._known: deque[_Known] = deque()

    def score(
        self, tokens: Sequence[int], *, alternatives: int, adapter: str = "", session: str | None = None
    ) -> Work[PromptScores]:
        """Scores with so many alternatives each; `adapter` is the identity of the one in place."""
        prompt, last = as_tokens(tokens), len(tokens) - 1
        known = self._recalled(prompt, alternatives, adapter)
        if len(known) == last:
            return PromptScores(known, last)
        cached, cache = 0, None
        if len(known) >= SHORTEST:
            cached, cache = self._prefixes.begin(tokens[: len(known)], adapter=adapter, session=session)
        if cache is None:
            _, cache = self._prefixes.begin(())
        scores = known[:cached]
        most = 16  # until the width of the logits is known
        while len(scores) < last:
            start = len(scores)
            size = min(self._pace.tokens, most, last - start)
            began = time.monotonic()
            logits = self._network(mx.array([tokens[start : start + size]]), cache=cache)[0]
            logits = logits.astype(mx.float32)
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            scores += scored_rows(logprobs, tokens[start + 1 : start + 1 + size], [alternatives] * size)
            mx.eval([layer.state for layer in cache])
            self._pace.took(size, time.monotonic() - began)
            most = max(1, _LOGITS // logits.shape[-1])
            yield
        self._prefixes.keep(tokens[:-1], cache, adapter=adapter, session=session)
        self._remember(_Known(prompt, adapter, alternatives, scores))
        return PromptScores(scores, cached)

    def _recalled(self, prompt: Tokens, alternatives: int, adapter: str) -> list[Scored]:
        """Scores of the first tokens, from the prompt that begins like this one for longest."""
        best: list[Scored] = []
        for known in self._known:
            if known.adapter == adapter and known.alternatives >= alternatives:
                # The first token has no score.
                count = common_prefix(known.tokens, prompt) - 1
                if count > len(best):
                    best = known.scores[:count]
        return [Scored(score.logprob, score.best[:alternatives]) for score in best]

    def _remember(self, new: _Known) -> None:
        self._known.appendleft(new)
        while len(self._known) > 1 and sum(known.numbers for known in self._known) > _REMEMBERED:
            self._known.pop()

"""Speculative decoding for the only row of a batch: a draft proposes tokens, a pass of the model checks them.

What is said is what the model itself says. At each position it chooses its own token, as it does without a
draft; proposals count as long as they are the same. A drawn token depends on the log probabilities and on
random numbers that belong to the position. The draft draws with the same ones, so that where it thinks alike
it mostly draws the same token, and a seed gives the same text whatever the draft is.

A pass over several tokens may round differently than one over a single token, as it may in a larger batch:
where two tokens are equally likely to the last digits, either may come.

A step leaves the row in the batch exactly as ordinary steps would, so that other rows may join at any time.
Rows with a grammar or a budget for thinking take ordinary steps: what they may say changes with each token.
"""

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

from worker.engine.constraint_batch import ConstrainedRows
from worker.engine.draft import CLOSE, Draft
from worker.engine.generator import RowGenerator
from worker.engine.processors import Processor
from worker.engine.rewind import rewind
from worker.engine.rows import Row
from worker.engine.sampling import OwnSampler, Samplers

_GROWTH: Final = 2
"""More proposals after a step in which all were right; one less after one in which they were not."""
_READ_FOR_ONE: Final = 64
"""Tokens of a row that the draft is worth reading for each token that is still to be said."""
_CLEAR_EVERY: Final = 256
"""Steps after which mlx's cache of freed arrays is dropped, as mlx-lm does."""


@dataclass
class Counts:
    """What happened since the start."""

    steps: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass
class Speculated:
    """What one step brought: responses as of mlx-lm's batch, all but the first proposed by the draft."""

    responses: list[Any]
    proposed: int


class Speculator:
    """For one batch. `most` tokens are proposed at a time."""

    def __init__(self, draft: Draft, samplers: Samplers, *, most: int) -> None:
        self.draft = draft
        self.counts = Counts()
        self._samplers = samplers
        self._most = most
        self._count = most
        self._sampler: tuple[int, OwnSampler | None] | None = None
        """The row that it speculated for last, and how that draws."""

    def reset(self) -> None:
        """The rows' state is unknown."""
        self.draft.reset()
        self._sampler = None

    def read(self, generator: RowGenerator) -> bool:
        """Let the draft read on in the only row, unless it is close enough; whether it is."""
        rows: ConstrainedRows = generator._generation_batch
        behind = self.draft.behind(rows.tokens[0])
        if behind > CLOSE and behind <= _READ_FOR_ONE * _left(rows):
            self.draft.read(behind)
        return behind <= CLOSE

    def able(self, generator: RowGenerator, row: Row) -> bool:
        """Whether there is something to propose for `row`, the only one."""
        rows: ConstrainedRows = generator._generation_batch
        return (
            row.control is None and _left(rows) > 1 and len(rows.tokens[0]) + self._most < self.draft.context
        )

    def step(self, generator: RowGenerator, row: Row) -> Speculated:
        """One pass over the only row's next token, chosen before, and what the draft makes of it."""
        rows: ConstrainedRows = generator._generation_batch
        count = min(self._count, _left(rows) - 1)
        chooser = self._chooser(rows, row)
        proposals = self.draft.propose(rows._next_tokens, count, chooser.propose)
        last = rows._next_tokens.astype(proposals.dtype)
        logits = rows.model(mx.concatenate([last, proposals])[None], cache=rows.prompt_cache)[0]
        chosen, logprobs = chooser.choose(logits, proposals)
        mx.eval(chosen, proposals, last, logprobs, rows._next_logprobs)
        guesses, right = proposals.tolist(), chosen.tolist()
        accepted = 0
        while accepted < count and guesses[accepted] == right[accepted]:
            accepted += 1
        said = _follow(rows, [int(last.item()), *guesses[:accepted]], [*rows._next_logprobs, *logprobs])
        spoken = len(said)
        rewind(rows.prompt_cache, count + 1 - spoken)
        rows.tokens[0].extend(response.token for response in said)
        rows._next_tokens, rows._next_logprobs = chosen[spoken - 1 : spoken], [logprobs[spoken - 1]]
        chooser.spoke(said, spoken)
        self.draft.settle()
        _finish(rows, said[-1])
        self._note(count, accepted, spoken - 1)
        return Speculated(said, count)

    def _note(self, count: int, accepted: int, used: int) -> None:
        self.counts.steps += 1
        self.counts.proposed += count
        self.counts.accepted += used
        self._count = min(self._most, count + _GROWTH) if accepted == count else max(1, count - 1)
        if self.counts.steps % _CLEAR_EVERY == 0:
            mx.clear_cache()

    def _chooser(self, rows: ConstrainedRows, row: Row) -> "_Chooser":
        own = rows.samplers[0]
        if isinstance(own, OwnSampler) and row.sampling.seed is not None:
            return _Chooser(rows, own)
        uid = rows.uids[0]
        if self._sampler is None or self._sampler[0] != uid:
            self._sampler = (uid, self._samplers.seeded(row.sampling))
        return _Chooser(rows, self._sampler[1])


class _Chooser:
    """Chooses the tokens of one step as the row wants them chosen."""

    def __init__(self, rows: ConstrainedRows, sampler: OwnSampler | None) -> None:
        self._rows = rows
        self._sampler = sampler
        self._processors: list[Processor] = list(rows.logits_processors[0] or ())
        if self._processors:
            before = rows._token_context[0].tokens
            self._context = mx.concatenate([before, rows._next_tokens.astype(before.dtype)])

    def propose(self, logits: Any, before: Any, ahead: int) -> Any:
        logits = self._processed(logits, before)
        if self._sampler is None:
            return mx.argmax(logits, axis=-1)
        return self._drawn(_logprobs(logits), ahead)

    def choose(self, logits: Any, proposals: Any) -> tuple[Any, Any]:
        """Tokens and log probabilities for (positions, vocabulary) logits, before and after each proposal."""
        positions = range(logits.shape[0])
        if self._processors:
            rows = [self._processed(logits[at : at + 1], proposals[:at] if at else None) for at in positions]
            logits = mx.concatenate(rows, axis=0)
        logprobs = _logprobs(logits)
        if self._sampler is None:
            return mx.argmax(logprobs, axis=-1), logprobs
        drawn = [self._drawn(logprobs[at : at + 1], at) for at in positions]
        return mx.concatenate(drawn), logprobs

    def spoke(self, said: list[Any], count: int) -> None:
        """So many tokens of this step are in the answer: the next step begins after them."""
        if self._sampler is not None:
            self._sampler.position += count
        if self._processors:
            self._rows._token_context[0].update_and_fetch(mx.array([response.token for response in said]))

    def _processed(self, logits: Any, before: Any) -> Any:
        if not self._processors:
            return logits
        context = self._context
        if before is not None:
            context = mx.concatenate([context, before.astype(context.dtype)])
        for processor in self._processors:
            logits = processor(context, logits)
        return logits

    def _drawn(self, logprobs: Any, ahead: int) -> Any:
        assert self._sampler is not None
        return self._sampler.draw(logprobs, self._sampler.position + ahead)


def _logprobs(logits: Any) -> Any:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _left(rows: ConstrainedRows) -> int:
    """Tokens that the only row may still say."""
    return rows.max_tokens[0] - rows._num_tokens[0]


def _follow(rows: ConstrainedRows, tokens: list[int], logprobs: list[Any]) -> list[Any]:
    """Say `tokens`, up to one that ends the row."""
    said = []
    for token, likelihoods in zip(tokens, logprobs, strict=False):
        rows._num_tokens[0] += 1
        reason = "length" if rows._num_tokens[0] >= rows.max_tokens[0] else None
        if rows._matchers[0].advance(token):
            reason = "stop"
        said.append(
            GenerationBatch.Response(
                uid=rows.uids[0],
                token=token,
                logprobs=likelihoods,
                finish_reason=reason,
                prompt_cache=None,
                all_tokens=None,
            )
        )
        if reason is not None:
            break
    return said


def _finish(rows: ConstrainedRows, last: Any) -> None:
    """If the row is over, take it out with what it leaves."""
    if last.finish_reason is not None:
        last.prompt_cache, last.all_tokens = rows.extract_cache(0), rows.tokens[0]
        rows.filter([])

"""mlx-lm's batch with constraints: one pass over all rows a step, while the forward pass runs.

As logits processors of its rows mlx-lm would run constraints one by one, each waiting for the last token
before the forward pass is even started. Here the forward pass is started first; the last tokens are there
already, for they are what it computes on; the masks are made while it runs.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

from worker.engine.constraint_rows import Control


class ConstrainedRows(GenerationBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Rows that decode together. A row's control is one of its logits processors."""

    always_own = False
    """Whether steps without any constraint are ours too, instead of mlx-lm's."""

    uids: list[int]
    tokens: list[list[int]]
    max_tokens: list[int]
    samplers: list[Any]
    logits_processors: list[Any]
    prompt_cache: list[Any]
    _next_tokens: Any
    _next_logprobs: list[Any]
    _num_tokens: list[int]
    _matchers: list[Any]
    _token_context: list[Any]

    @property
    def is_last(self) -> bool:
        """Whether every row has been given its last token already, so that another pass would serve nobody.

        mlx-lm makes it all the same: an answer of one token would take two.
        """
        # Without log probabilities nothing was chosen yet.
        return bool(self._next_logprobs) and all(
            said + 1 >= most for said, most in zip(self._num_tokens, self.max_tokens, strict=True)
        )

    def _say_last(self) -> tuple[list[int], list[Any]]:
        """What was chosen last. `tokens` and the caches do without it: no pass has read it."""
        inputs = self._current_tokens = self._next_tokens
        self._current_logprobs = self._next_logprobs
        mx.eval(inputs, self._current_logprobs)
        tokens: list[int] = inputs.tolist()
        _follow(self._controls(), tokens)
        return tokens, self._current_logprobs

    def _controls(self) -> list[Control | None]:
        return [_control(processors or ()) for processors in self.logits_processors]

    def _step(self) -> tuple[list[int], list[Any]]:
        if self.is_last:
            return self._say_last()
        controls = self._controls()
        masks = next((control.masks for control in controls if control is not None), None)
        if masks is None and not self.always_own:
            step: tuple[list[int], list[Any]] = super()._step()
            return step
        inputs = self._current_tokens = self._next_tokens
        self._current_logprobs = self._next_logprobs
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        mx.eval(inputs, self._current_logprobs)
        tokens: list[int] = inputs.tolist()
        _follow(controls, tokens)
        logits = self._processed(logits, inputs)
        bits = None if masks is None else masks.fill(controls)
        if masks is not None and bits is not None:
            logits = masks.apply(logits, bits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        self._next_tokens = self._sampled(logprobs)
        self._next_logprobs = list(logprobs)
        mx.async_eval(self._next_tokens, self._next_logprobs)  # type: ignore[no-untyped-call]
        for row, token in zip(self.tokens, tokens, strict=True):
            row.append(token)
        return tokens, self._current_logprobs

    def _processed(self, logits: Any, inputs: Any) -> Any:
        """The rows' other processors, before the grammar has the last word."""
        rows = []
        touched = False
        for index, processors in enumerate(self.logits_processors):
            row = logits[index : index + 1]
            others = [processor for processor in processors or () if not isinstance(processor, Control)]
            if others:
                touched = True
                context = self._token_context[index].update_and_fetch(inputs[index : index + 1])
                for processor in others:
                    row = processor(context, row)
            rows.append(row)
        return mx.concatenate(rows, axis=0) if touched else logits

    def _sampled(self, logprobs: Any) -> Any:
        """One call of a sampler for each run of rows that share it."""
        samplers = [sampler or self.fallback_sampler for sampler in self.samplers or [None] * len(self.uids)]
        drawn = []
        start = 0
        for sampler, run in itertools.groupby(samplers):
            end = start + len(list(run))
            drawn.append(sampler(logprobs[start:end]))
            start = end
        return drawn[0] if len(drawn) == 1 else mx.concatenate(drawn, axis=0)


def _control(processors: Sequence[Any]) -> Control | None:
    return next((processor for processor in processors if isinstance(processor, Control)), None)


def _follow(controls: Sequence[Control | None], tokens: Sequence[int]) -> None:
    for control, token in zip(controls, tokens, strict=True):
        if control is not None:
            control.follow(token)

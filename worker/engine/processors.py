"""What is done to a row's logits before a token is chosen: bias, penalties, and the tokens not to say yet."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from worker.request import Sampling

Processor = Callable[[Any, Any], Any]
"""All tokens of one row, prompt and answer, and its (1, vocabulary) logits, to logits."""

_BANNED: Final = -100.0
"""OpenAI promises that this bias bans a token; taken as a number it would only make it unlikely."""
_BAN: Final = -1e4
"""No token with this is ever chosen while there is another. Infinity would leave nothing to choose from where
a grammar allows banned tokens only."""


class NotYet:
    """Forbids tokens, those that would end the row, until prompt and answer have `length` tokens together."""

    def __init__(self, tokens: Iterable[int], length: int) -> None:
        self._tokens = mx.array(sorted(tokens))
        self._length = length

    def __call__(self, tokens: Any, logits: Any) -> Any:
        if tokens.size >= self._length:
            return logits
        return logits.at[:, self._tokens].add(_BAN)


def processors_of(sampling: Sampling) -> list[Processor]:
    """For one row; none when nothing is asked for, because then the whole batch is computed at once."""
    bias = {token: _BAN if value <= _BANNED else value for token, value in sampling.logit_bias if value}
    repetition = sampling.repetition_penalty
    processors: list[Processor] = make_logits_processors(
        logit_bias=bias,
        repetition_penalty=None if repetition == 1 else repetition,
        repetition_context_size=sampling.repetition_context_size,
        presence_penalty=sampling.presence_penalty or None,
        presence_context_size=sampling.presence_context_size,
        frequency_penalty=sampling.frequency_penalty or None,
        frequency_context_size=sampling.frequency_context_size,
    )
    return processors

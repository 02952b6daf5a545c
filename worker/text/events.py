"""Reply events: what a completion says, before a wire format words it."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from worker.text.logprobs import TokenLikelihood
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning

FinishReason = Literal["stop", "length"]
"""Why the engine ended a row."""
ReplyEnding = Literal["stop", "length", "tool_calls"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one completion. `completion` includes the token that ended it."""

    prompt: int
    completion: int
    cached: int = 0
    """Prompt tokens that were not computed again."""
    reasoning: int = 0
    """Completion tokens that the model thought with."""
    proposed: int = 0
    """Tokens that the draft proposed, whether or not they became part of the completion."""
    accepted: int = 0
    """Completion tokens that the draft had proposed."""


def total_usage(prompts: Iterable[Sequence[Usage]]) -> Usage:
    """What answers cost together; those of one prompt share it, so it counts once."""
    prompts = [list(answers) for answers in prompts]
    return Usage(
        prompt=sum(answers[0].prompt for answers in prompts),
        completion=sum(answer.completion for answers in prompts for answer in answers),
        cached=sum(answers[0].cached for answers in prompts),
        reasoning=sum(answer.reasoning for answers in prompts for answer in answers),
        proposed=sum(answer.proposed for answers in prompts for answer in answers),
        accepted=sum(answer.accepted for answers in prompts for answer in answers),
    )


class TextDelta(msgspec.Struct, frozen=True):
    """Some more text of the answer. Never half a character, never a part of a stop sequence."""

    text: str
    logprobs: tuple[TokenLikelihood, ...] = ()
    """Of the tokens whose text begins here, when asked for."""
    flagged: bool = False
    """It is a tool call that does not parse, as the model wrote it."""


class Finished(msgspec.Struct, frozen=True):
    """The last event of a reply."""

    reason: ReplyEnding
    usage: Usage
    stop: str | int | None = None
    """The stop sequence that was matched, or the token id of the request's that was said."""


ReplyEvent = TextDelta | Reasoning | CallBegan | CallArguments | CallEnded | CallVoided | CallCut | Finished

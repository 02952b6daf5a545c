"""Reply events: what a completion says, before a wire format words it."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one completion. `completion` includes the token that ended it."""

    prompt: int
    completion: int
    cached: int = 0
    """Prompt tokens that were not computed again."""


class TextDelta(msgspec.Struct, frozen=True):
    """Some more text of the answer. Never half a character, never a part of a stop sequence."""

    text: str


class Finished(msgspec.Struct, frozen=True):
    """The last event of a reply."""

    reason: FinishReason
    usage: Usage
    stop: str | None = None
    """The stop sequence that was matched."""


ReplyEvent = TextDelta | Finished

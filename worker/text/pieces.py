"""What a reply's text is made of, once the model's own markup is taken apart."""

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """Some more of what the model thinks."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """Some more of the answer.

    `flagged` marks the text of a tool call that does not parse: it is shown as the model wrote it.
    """

    text: str
    flagged: bool = False


class CallBegan(msgspec.Struct, frozen=True):
    """The model calls a tool; calls of one reply count from 0. Calls do not overlap."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """Some more of the arguments. All pieces of a call that ends are together one JSON object."""

    index: int
    delta: str


class CallEnded(msgspec.Struct, frozen=True):
    """The call is complete and its arguments are valid JSON."""

    index: int


class CallVoided(msgspec.Struct, frozen=True):
    """A call that had begun turned out not to parse; its text follows as flagged content."""

    index: int


class CallCut(msgspec.Struct, frozen=True):
    """The token limit came in the middle of a call, so the reply ends for its length.

    `index` is None when not even the name was complete: then nothing of the call was shown.
    """

    index: int | None


Piece = Reasoning | Content | CallBegan | CallArguments | CallEnded | CallVoided | CallCut

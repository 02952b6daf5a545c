"""What goes into the history and comes out of it."""

import msgspec

from shared.responses.answer import Response
from shared.responses.items import Item


class Kept(msgspec.Struct, frozen=True):
    """A response as it is kept."""

    response: Response
    background: bool
    streamed: bool
    """It was asked for as a stream, so its events are kept too."""
    events: bytes | None


class Before(msgspec.Struct, frozen=True):
    """What a new response goes on from."""

    items: list[Item] = []
    base: int | None = None
    """Where the conversation ended."""


class Turn(msgspec.Struct, frozen=True):
    """What is kept of a response beside the response object."""

    input: list[Item]
    """As it is shown: `shared.responses.items.kept_item`."""
    base: int | None = None
    context: list[Item] | None = None
    """What it read in place of what it goes on from and its input, if that was condensed."""
    background: bool = False
    streamed: bool = False

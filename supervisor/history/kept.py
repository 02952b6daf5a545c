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
    warnings: tuple[str, ...] = ()
    """The values of the `Warning` headers that it came with, or would have."""


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
    warnings: tuple[str, ...] = ()
    """One line each."""


class StoreStats(msgspec.Struct, frozen=True):
    """How much is kept of responses and conversations."""

    responses: int
    conversations: int
    items: int
    bytes: int
    max_bytes: int
    """The cap: what was used least recently goes first."""
    keep_s: float
    """What nobody used for so many seconds is forgotten."""
    oldest_used_at: float | None
    """When the one that goes first was used last, in seconds since 1970; null when nothing is kept."""

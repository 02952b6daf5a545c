"""What a worker tells about its work: the lines of `GET /admin/events`, NDJSON.

`at` is seconds of the worker's monotonic clock, so that differences mean something.
"""

from typing import Literal

import msgspec

from shared.status import Memory


class RequestStarted(msgspec.Struct, frozen=True, tag_field="event", tag="started"):
    """A request was admitted and its prompt is known."""

    id: str
    at: float
    kind: str
    """Which route it came in by: `chat`, `memory`."""
    prompt_tokens: int
    stream: bool = False
    request_id: str | None = None
    """The `x-request-id` that it came with."""


class FirstToken(msgspec.Struct, frozen=True, tag_field="event", tag="first_token"):
    """The prompt is computed. `queued_s` of `ttft_s` was spent waiting for a row."""

    id: str
    at: float
    queued_s: float
    ttft_s: float


class RequestFinished(msgspec.Struct, frozen=True, tag_field="event", tag="finished"):
    """The request is over, however it ended."""

    id: str
    at: float
    reason: Literal["stop", "length", "cancelled", "failed"]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    total_s: float
    decode_tps: float | None = None
    """Tokens per second after the first; None with fewer than two."""
    proposed_tokens: int = 0
    """Tokens that the draft proposed."""
    accepted_tokens: int = 0
    """Those of them that are in the answer."""


class MemoryReading(msgspec.Struct, frozen=True, tag_field="event", tag="memory"):
    """Said on connect, after each finish, and on a change, at most once a second."""

    at: float
    memory: Memory


class Dropped(msgspec.Struct, frozen=True, tag_field="event", tag="dropped"):
    """The reader was too slow and missed `count` lines."""

    count: int


Activity = RequestStarted | FirstToken | RequestFinished | MemoryReading | Dropped

_decoder = msgspec.json.Decoder(Activity)


def decode_activity(line: bytes) -> Activity:
    """Raises msgspec.MsgspecError for anything that is not a line of the feed."""
    return _decoder.decode(line)

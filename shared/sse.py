"""Server-sent events as both sides write them.

Source: the HTML standard, section "Server-sent events".
"""

from typing import Final

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"

# What proxies need so that nothing is held back or kept: no cache, and no buffering by nginx.
HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"


def comment(text: str) -> bytes:
    """One that clients read past. `text` is one line."""
    return b": " + text.encode() + b"\n\n"


def event(data: bytes, name: str | None = None) -> bytes:
    """One event. `data` is JSON, so it holds no line break; `name` is the event's type, if any."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

"""Which conversation a request belongs to, when the client says so: its state is kept in preference.

Names are those that clients send already: `session_id` and OpenAI's `prompt_cache_key` in the body, and the
headers of agents and gateways.
"""

import hashlib
from typing import Final

import msgspec

from worker.api.exchange import Exchange
from worker.request import Request

HEADERS: Final = (b"x-session-affinity", b"x-session-id", b"session_id", b"x-claude-code-session-id")
_LONGEST: Final = 64
"""A longer name is kept as its digest."""


def in_session(request: Request, exchange: Exchange) -> Request:
    """`request` with the session that its body names, or else its headers."""
    return msgspec.structs.replace(request, session=session_of(request.session, exchange))


def session_of(named: str | None, exchange: Exchange) -> str | None:
    """The session that a body has `named`, or else the headers."""
    name = named or next(filter(None, map(exchange.header, HEADERS)), None)
    if name is not None and len(name) > _LONGEST:
        name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return name

"""The headers of a request: by name, and which of them reach a model."""

from collections.abc import Sequence
from typing import Final

from shared.errors import PublicError

Headers = Sequence[tuple[bytes, bytes]]
Fields = dict[bytes, bytes]
"""Headers by name in lower case."""

NAMING: Final = (
    b"x-request-id",
    b"traceparent",
    b"tracestate",
    b"x-session-affinity",
    b"x-session-id",
    b"session_id",
    b"x-claude-code-session-id",
)
"""Headers that name a request, the trace that it is part of, and its conversation."""
PASSED_ON: Final = (b"content-type", b"accept", *NAMING)
"""Headers that a worker gets of a client. The others stay here: keys, hosts, who is said to have asked."""
HANDED_BACK: Final = b"x-handed-back"
"""Of a worker's 503: nothing of an answer was told, and the supervisor is to find another moment for it."""
_ONCE: Final = frozenset({b"host", b"origin", b"content-type", b"sec-fetch-site"})


def naming(fields: Fields) -> Headers:
    """Those of a client that a worker gets also where another body than the client's goes to it."""
    return [(name, fields[name]) for name in NAMING if name in fields]


def fields_of(headers: Headers) -> Fields:
    """The headers by name. Raises PublicError, 400, when one that decides anything comes twice."""
    fields = dict(headers)
    check_once(headers, fields)
    return fields


def check_once(headers: Headers, fields: Fields) -> None:
    """Raises PublicError, 400, when one of `headers` that decides anything comes twice; `fields` are they."""
    if len(fields) != len(headers):
        names = [name for name, _ in headers]
        for name in _ONCE & fields.keys():
            if names.count(name) > 1:
                raise PublicError(
                    400, "repeated_header", f"The header {name.decode()} must not be sent more than once."
                )

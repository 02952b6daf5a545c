"""The paths of the Responses API."""

import re
from typing import Final

ROUTES: Final = (
    "POST /v1/responses",
    "GET /v1/responses (WebSocket)",
    "POST /v1/responses/compact",
    "POST /v1/responses/input_tokens",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /v1/conversations",
    "GET /v1/conversations/{id}",
    "POST /v1/conversations/{id}",
    "DELETE /v1/conversations/{id}",
    "GET /v1/conversations/{id}/items",
    "POST /v1/conversations/{id}/items",
    "GET /v1/conversations/{id}/items/{item_id}",
    "DELETE /v1/conversations/{id}/items/{item_id}",
)
RESPONDED: Final = frozenset({b"/v1/responses", b"/v1/responses/compact", b"/v1/responses/input_tokens"})
"""Those for which a model works."""
_OURS: Final = re.compile(rb"/v1/(responses|conversations)(?:/|$)")


def is_ours(path: bytes) -> bool:
    """Whether a path is answered here."""
    return _OURS.match(path) is not None

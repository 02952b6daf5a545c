"""What an error looks like to a client, in each API's own shape.

Sources: OpenAI's `Error` object (`error.message/type/param/code`); a stream that fails sends the same
object as its last `data:` event, which the official SDKs raise as `APIError`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import orjson

from shared import sse


class Api(StrEnum):
    """The wire format a client speaks, told from the path it asked for."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"

    @classmethod
    def of_path(cls, path: str, *, anthropic_client: bool = False) -> "Api":
        """`anthropic_client` is one that says so itself: the lists of models have one path in both APIs."""
        if path.startswith("/v1/messages") or (anthropic_client and path.startswith("/v1/models")):
            return cls.ANTHROPIC
        return cls.OPENAI


_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
# Source: Anthropic's documented error types by status.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class PublicError(Exception):
    """An error that is safe to show to the client: no path, key or traceback in it.

    `code` is stable and meant for programs, `message` is a sentence for people that says what to do.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.extra_headers = headers
        self.details = details
        """More for programs, where Anthropic's clients look for some."""

    def body(self, api: Api = Api.OPENAI, request_id: str | None = None) -> bytes:
        """The JSON body in the shape of `api`; Anthropic's names the request."""
        if api is Api.ANTHROPIC:
            other = "invalid_request_error" if self.status < 500 else "api_error"
            error: dict[str, Any] = {
                "type": _ANTHROPIC_TYPES.get(self.status, other),
                "message": self.message,
                "code": self.code,
                "param": self.param,
            }
            if self.details is not None:
                error["details"] = self.details
            return orjson.dumps({"type": "error", "error": error, "request_id": request_id})
        other = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _OPENAI_TYPES.get(self.status, other)
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers but for the content length."""
        headers = [(b"content-type", b"application/json"), *self.extra_headers]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(max(1, round(self.retry_after_s))).encode()))
        return headers

    def frame(self, api: Api = Api.OPENAI, request_id: str | None = None) -> bytes:
        """The event that ends a stream which had already begun."""
        return sse.event(self.body(api, request_id), "error" if api is Api.ANTHROPIC else None)


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> PublicError:
    """400 for a field of the request; `param` is the field's path, such as `messages[0].role`."""
    return PublicError(400, code, message, param=param)

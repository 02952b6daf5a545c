"""How the routes answer: structs as JSON, and every error in the shape of the API that was asked."""

import traceback
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from shared.errors import Api, PublicError, invalid
from supervisor.routes.refusals import method_not_allowed, not_found
from supervisor.telemetry.events import Events

READ: Final = ["GET", "HEAD"]


class Json(Response):
    """Any struct, or what is made of structs, lists and dicts."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def answer_errors(app: FastAPI, events: Events) -> None:
    """Make every error of `app` a PublicError's answer. A fault of ours is told to `events` as well."""

    async def public(request: Request, error: Exception) -> Response:
        assert isinstance(error, PublicError)
        return _reply(request, error)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return _reply(request, method_not_allowed((error.headers or {}).get("Allow", "")))
        if error.status_code == 404:
            return _reply(request, not_found())
        return _reply(request, PublicError(error.status_code, "bad_request", str(error.detail)))

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        return _reply(request, invalid(f"'{param}': {first['msg']}.", param=param))

    async def fault(request: Request, error: Exception) -> Response:
        # Its words may quote what a client sent, so only its kind and its place are told.
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
        events.emit("route.fault", level="error", error=type(error).__name__, place=place)
        return _reply(request, PublicError(500, "internal_error", "This is a fault of the server."))

    app.add_exception_handler(PublicError, public)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(Exception, fault)


def _reply(request: Request, error: PublicError) -> Response:
    headers = request.headers
    api = Api.of_path(request.url.path, anthropic_client="anthropic-version" in headers)
    response = Response(error.body(api, headers.get("x-request-id")), error.status)
    response.raw_headers[:] = [*error.headers(), (b"content-length", b"%d" % len(response.body))]
    return response

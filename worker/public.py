"""The public port of a worker that serves without a supervisor: who may ask, for which model, and what.

The rules are those of the supervisor's front, from `shared`. Nothing but the routes named here is behind it,
and paths are compared as they were sent: there is no spelling under which an admin route can be reached.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from shared.access import Access, is_preflight, preflight, shown
from shared.envelope import open_envelope, too_large, with_fields
from shared.errors import Api, PublicError, invalid
from shared.headers import PASSED_ON, Fields, fields_of
from shared.launch import Public
from shared.request_ids import HEADER, headers_for, request_id
from worker.api.exchange import ClientGone, Exchange
from worker.api.models import Models

Asgi = Callable[[Any, Any, Any], Awaitable[None]]

_HEALTHY: Final = b'{"status":"ok","reasons":[]}'
_MODELS: Final = b"/v1/models"
_RESPONSES: Final = b"/v1/responses"
_NEED_HISTORY: Final = ("previous_response_id", "conversation", "background")


class PublicPort:
    """The ASGI application of the port; `app` answers the POST requests to `paths` that it lets through.

    `models` gives the list of models or raises PublicError, 503, while there is none; `is_stopping` says
    whether new requests come too late.
    """

    def __init__(
        self,
        app: Asgi,
        public: Public,
        *,
        model: str,
        paths: frozenset[bytes],
        models: Callable[[], Models],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._public = public
        self._access = Access(public)
        self._model = model
        self._paths = paths
        self._models = models
        self._is_stopping = is_stopping

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        offered: list[tuple[bytes, bytes]] = scope["headers"]
        name = request_id(dict(offered).get(HEADER))
        labels = [*headers_for(name, Api.of_path(scope["path"]))]
        # Keys stay here, and so does what only a supervisor may tell a model.
        known = [(key, value) for key, value in offered if key in PASSED_ON and key != HEADER]
        scope = {**scope, "headers": [*known, (HEADER, name)]}
        send = _Labelled(send, labels)
        exchange = Exchange(scope, receive, send)
        try:
            fields = fields_of(offered)
            labels += self._access.check(scope["method"], fields)
            await self._serve(scope, fields, exchange, receive, send)
        except ClientGone:
            return
        except PublicError as error:
            await exchange.fail(error)

    async def _serve(self, scope: Any, fields: Fields, exchange: Exchange, receive: Any, send: Any) -> None:
        path, method = scope["raw_path"], scope["method"]
        is_lookup = path in (b"/health", _MODELS) or path.startswith(_MODELS + b"/")
        if not is_lookup and path not in self._paths and (path != b"/" or method != "HEAD"):
            raise PublicError(404, "not_found", "There is nothing at this path.")
        allowed = ("GET", "HEAD") if is_lookup or path == b"/" else ("POST",)
        if is_preflight(method, fields):
            await exchange.start(204, preflight(fields, ", ".join(allowed)))
            await exchange.finish()
            return
        if method not in allowed:
            allow = ", ".join(allowed)
            headers = ((b"allow", allow.encode()),)
            raise PublicError(405, "method_not_allowed", f"This path takes {allow} only.", headers=headers)
        if path == b"/":
            await exchange.answer(200, b"")
        elif path == b"/health":
            await exchange.answer(200, _HEALTHY)
        elif path == _MODELS:
            await self._models()(exchange)
        elif is_lookup:
            self._check_name(unquote_to_bytes(path.removeprefix(_MODELS + b"/")).decode("utf-8", "replace"))
            await self._models().one(exchange)
        else:
            body = await self._body(path, fields, exchange)
            await self._app(scope, _Replayed(body, receive), send)

    async def _body(self, path: bytes, fields: Fields, exchange: Exchange) -> bytes:
        """The request as its route gets it. Raises PublicError for one that can't be meant for it."""
        if self._is_stopping():
            raise PublicError(503, "stopping", "The server is being stopped.", retry_after_s=1)
        most = self._public.max_body_bytes
        if int(fields.get(b"content-length", b"0")) > most:
            raise too_large(most)
        try:
            body = await exchange.body(most)
        except PublicError as error:
            raise (too_large(most) if error.status == 413 else error) from None
        self._check_name(open_envelope(body).model)
        forced, dropped = dict(self._public.set), self._public.strip
        if path.startswith(_RESPONSES):
            forced |= _without_history(body)
        return with_fields(body, forced, dropped) if forced or dropped else body

    def _check_name(self, name: str) -> None:
        if self._public.names.find(name) == self._model:
            return
        raise PublicError(
            404,
            "model_not_found",
            f"The model {shown(name)} does not exist here. There is {self._model} alone.",
            param="model",
        )


def _without_history(body: bytes) -> dict[str, object]:
    """What a request for a response says of keeping it, made true. Raises PublicError, 400, for one that goes
    on from what was kept."""
    asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in _NEED_HISTORY:
        if bytes(asked.get(name, b"null")) not in (b"null", b"false"):
            raise invalid(
                f"'{name}' needs a history, and a server that was started with --in-process keeps none; "
                "send the whole input.",
                param=name,
                code="unsupported_parameter",
            )
    return {"store": False} if bytes(asked.get("store", b"true")) in (b"true", b"null") else {}


class _Labelled:
    """A `send` that adds headers to the answer; `labels` may still grow until then."""

    def __init__(self, send: Any, labels: Sequence[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._labels = labels

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self._labels]}
        await self._send(message)


class _Replayed:
    """A `receive` that gives a body which was read already."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

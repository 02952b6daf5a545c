"""The public listener's application: access, bodies, and who answers what.

Raw ASGI, because every request for a model comes through here. What is not forwarded to a worker goes to the
FastAPI application of `routes/`; paths are compared as they were sent, so there is one spelling of each.
"""

import time
from typing import Any, Final, Protocol

import msgspec

from shared.access import Access, is_preflight, preflight
from shared.errors import Api, PublicError
from shared.headers import Fields, Headers, fields_of
from shared.request_ids import HEADER, headers_for, request_id
from supervisor.catalog.catalog import Catalog
from supervisor.front.body import read_body
from supervisor.front.wanted import wanted_of
from supervisor.http.exchange import AsgiApp, ClientGone, Exchange, Message, send_answer, send_error
from supervisor.pings import ping_for
from supervisor.relay import FORWARDED, Forwarded, Slots, forward
from supervisor.responses.app import Asked, Responses
from supervisor.responses.paths import RESPONDED, is_ours
from supervisor.routes.health import health_of
from supervisor.routes.parts import Residents
from supervisor.routes.refusals import method_not_allowed, not_found
from supervisor.settings import Settings
from supervisor.telemetry.tally import Tally
from supervisor.telemetry.timelines import Mark, Timelines

MAX_CONTROL_BODY_BYTES: Final = 1 << 20
"""Bodies of requests that the supervisor itself answers."""


MODEL: Final = "supervisor.model"
"""Where the scope holds the id of the model that a request turned out to be for."""
CAME: Final = "supervisor.came"
"""When it came, by the monotonic clock."""
MARK: Final = "supervisor.mark"
"""What writes its timeline, if it has one."""
GONE: Final = 499
"""The status that is counted for a client that left before its answer began; nobody gets it."""


class Workers(Slots, Residents, Protocol):
    """The pool."""


class Front:
    """`responses` answers for the history, `routes` what else no worker does."""

    def __init__(
        self,
        *,
        settings: Settings,
        catalog: Catalog,
        pool: Workers,
        responses: Responses,
        routes: AsgiApp,
        tally: Tally,
        timelines: Timelines,
    ) -> None:
        self.configure(settings)
        self._catalog = catalog
        self._pool = pool
        self._responses = responses
        self._routes = routes
        self._tally = tally
        self._timelines = timelines

    def configure(self, settings: Settings) -> None:
        """These settings count from now on."""
        self._access = Access(settings.server)
        self._server = settings.server
        self._max_body_bytes = settings.server.max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[CAME] = time.monotonic()
        headers = dict(scope["headers"])
        api = Api.of_path(scope["path"], anthropic_client=b"anthropic-version" in headers)
        name = request_id(headers.get(HEADER))
        labels = headers_for(name, api)
        try:
            fields = fields_of(scope["headers"])
            fields[HEADER] = name
            labels = (*labels, *self._access.check(scope["method"], fields))
            await self._serve(scope, fields, labels, receive, _Labelled(send, labels), api)
        except ClientGone:
            return
        except PublicError as error:
            await send_error(_Labelled(send, labels), error, api, name.decode())
        finally:
            self._count(scope)

    def _count(self, scope: Any) -> None:
        path: bytes = scope["raw_path"]
        # Paths are made up by clients; series are not.
        known = path in FORWARDED or path in RESPONDED
        route = path.decode() if known else "other"
        status = Exchange.of(scope).status or GONE
        self._tally.answered(route, scope.get(MODEL, ""), status)
        if (mark := scope.get(MARK)) is not None:
            self._timelines.end(mark, status)

    def _begin(self, scope: Any, fields: Fields) -> Mark:
        mark = self._timelines.begin(fields[HEADER].decode(), scope["path"], scope[CAME])
        scope[MARK] = mark
        return mark

    async def _serve(
        self, scope: Any, fields: Fields, labels: Headers, receive: Any, send: Any, api: Api
    ) -> None:
        path: bytes = scope["raw_path"]
        if path in FORWARDED:
            if scope["method"] != "POST":
                if is_preflight(scope["method"], fields):
                    await send_answer(send, 204, preflight(fields, "POST"), b"")
                    return
                raise method_not_allowed("POST")
            await self._forward(scope, fields, labels, receive, api)
            return
        if path == b"/health":
            await self._health(scope["method"], send)
            return
        if path == b"/" and scope["method"] == "HEAD":
            # How some clients find out whether anybody is there.
            await send_answer(send, 200, (), b"")
            return
        # "//x" is left over where somebody glued two parts of an address together, "http://h/x" goes to a
        # proxy: neither is another spelling of a path here.
        if not path.startswith(b"/") or path.startswith(b"//"):
            raise not_found()
        if is_preflight(scope["method"], fields):
            await send_answer(send, 204, preflight(fields, "GET, POST, DELETE"), b"")
            return
        if is_ours(path):
            await self._respond(scope, fields, labels, receive)
            return
        if b"content-length" in fields or b"transfer-encoding" in fields:
            body = await read_body(receive, fields.get(b"content-length"), max_bytes=MAX_CONTROL_BODY_BYTES)
            receive = _Replayed(body, receive)
        if (HEADER, fields[HEADER]) not in scope["headers"]:
            scope = {**scope, "headers": [*scope["headers"], (HEADER, fields[HEADER])]}
        await self._routes(scope, receive, send)

    async def _health(self, method: str, send: Any) -> None:
        """Answered here, so that it never waits for anything."""
        if method not in ("GET", "HEAD"):
            raise method_not_allowed("GET, HEAD")
        body = msgspec.json.encode(health_of(self._pool.engine()))
        await send_answer(send, 200, [(b"content-type", b"application/json")], body)

    async def _respond(self, scope: Any, fields: Fields, labels: Headers, receive: Any) -> None:
        body = await read_body(receive, fields.get(b"content-length"), max_bytes=self._max_body_bytes)

        # Only what asks for an answer; the rest is looked up.
        mark = self._begin(scope, fields) if scope["method"] == "POST" else None

        def found(model: str) -> None:
            scope[MODEL] = model
            if mark is not None:
                mark.parsed(model, self._pool.state_of(model))

        await self._responses(
            Asked(
                Exchange.of(scope),
                scope["method"],
                scope["raw_path"],
                scope["query_string"],
                fields,
                body,
                labels,
                found,
                mark,
            )
        )

    async def _forward(self, scope: Any, fields: Fields, labels: Headers, receive: Any, api: Api) -> None:
        mark = self._begin(scope, fields)
        body = await read_body(receive, fields.get(b"content-length"), max_bytes=self._max_body_bytes)
        wanted = wanted_of(body, self._catalog)
        scope[MODEL] = wanted.entry.id
        mark.parsed(wanted.entry.id, self._pool.state_of(wanted.entry.id))
        path: bytes = scope["raw_path"]
        ping = ping_for(path, wanted.entry.id, self._server) if wanted.stream else None
        request = Forwarded(
            Exchange.of(scope),
            wanted.entry,
            api,
            scope["method"],
            path,
            fields,
            wanted.body,
            labels,
            ping,
            mark=mark,
        )
        await forward(request, self._pool)


class _Labelled:
    """A `send` that adds headers to the answer."""

    def __init__(self, send: Any, headers: Any) -> None:
        self._send = send
        self._headers = headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)


class _Replayed:
    """A `receive` that gives a body which was read already."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            rest: Message = await self._receive()
            return rest
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

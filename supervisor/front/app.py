"""The public listener's application: access, bodies, and who answers what.

Every request for a model comes through here, so there is no ASGI between. What is not forwarded to a worker
goes to the FastAPI application of `routes/`; paths are compared as they were sent, so there is one spelling
of each.
"""

import functools
from typing import Any, Final, Protocol

import msgspec

from shared.access import Access, is_preflight, preflight
from shared.errors import PublicError
from shared.headers import Headers, check_once
from shared.request_ids import HEADER
from supervisor.catalog.catalog import Catalog
from supervisor.front.body import body_at_once, body_of, is_on_its_way
from supervisor.front.incoming import Incoming
from supervisor.front.wanted import wanted_of
from supervisor.http.asgi import AsgiApp, scope_of
from supervisor.http.connected import ClientGone
from supervisor.http.exchange import Exchange, Message, Work
from supervisor.pings import ping_for
from supervisor.relay import FORWARDED, Forwarded, Relay, Slots, forward
from supervisor.responses.app import Asked, Responses
from supervisor.responses.paths import RESPONDED, is_ours
from supervisor.routes.health import health_of
from supervisor.routes.parts import ModelPool
from supervisor.routes.refusals import method_not_allowed, not_found
from supervisor.settings import Settings
from supervisor.telemetry.tally import Tally
from supervisor.telemetry.timelines import Mark, Timelines

MAX_CONTROL_BODY_BYTES: Final = 1 << 20
"""Bodies of requests that the supervisor itself answers."""
GONE: Final = 499
"""The status that is counted for a client that left before its answer began; nobody gets it."""
_KNOWN: Final = {path: path.decode() for path in (*FORWARDED, *RESPONDED)}
"""Routes that are counted one by one: paths are made up by clients, series are not."""
_JSON: Final = (b"content-type", b"application/json")


class Workers(Slots, ModelPool, Protocol):
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

    def __call__(self, exchange: Exchange) -> Work | None:
        """Answer, or set in motion what will, or return the work of a task; see `Handler`."""
        came = Incoming(exchange)
        exchange.when_over = functools.partial(self._count, came)
        try:
            check_once(exchange.headers, came.fields)
            came.fields[HEADER] = came.name
            if shown := self._access.check(exchange.method, came.fields):
                came.labels = (*came.labels, *shown)
            work = self._serve(came)
        except PublicError as error:
            self._refuse(came, error)
            return None
        return None if work is None else self._guarded(came, work)

    async def _guarded(self, came: Incoming, work: Work) -> None:
        """The work of a task on the request."""
        try:
            await work
        except ClientGone:
            return
        except PublicError as error:
            await came.exchange.writable()
            self._refuse(came, error)

    def _refuse(self, came: Incoming, error: PublicError) -> None:
        body = error.body(came.api, came.name.decode())
        came.exchange.answer(error.status, [*error.headers(), *came.labels], body)

    def _count(self, came: Incoming) -> None:
        status = came.exchange.status or GONE
        self._tally.answered(_KNOWN.get(came.exchange.raw_path, "other"), came.model, status)
        if came.mark is not None and not came.mark.goes_on:
            self._timelines.end(came.mark, status)

    def count_refused(self, path: bytes, status: int) -> None:
        """The HTTP server itself answered a request; see `HttpServer`."""
        self._tally.answered(_KNOWN.get(path, "other"), "", status)

    def _serve(self, came: Incoming) -> Work | None:
        exchange, fields = came.exchange, came.fields
        path, method = exchange.raw_path, exchange.method
        if path in FORWARDED:
            if method == "POST":
                return self._forward(came)
            if not is_preflight(method, fields):
                raise method_not_allowed("POST")
            exchange.answer(204, [*preflight(fields, "POST"), *came.labels])
        elif path == b"/health":
            self._health(came)
        elif path == b"/" and method == "HEAD":
            # How some clients find out whether anybody is there.
            exchange.answer(200, came.labels)
        elif not path.startswith(b"/") or path.startswith(b"//"):
            # "//x" is left over where somebody glued two parts of an address together, "http://h/x" goes to a
            # proxy: neither is another spelling of a path here.
            raise not_found()
        elif is_preflight(method, fields):
            exchange.answer(204, [*preflight(fields, "GET, POST, DELETE"), *came.labels])
        elif is_ours(path):
            return self._respond(came)
        else:
            return self._route(came)
        return None

    def _health(self, came: Incoming) -> None:
        """Answered here, so that it never waits for anything."""
        if came.exchange.method not in ("GET", "HEAD"):
            raise method_not_allowed("GET, HEAD")
        body = msgspec.json.encode(health_of(self._pool.engine(), self._responses.trouble))
        came.exchange.answer(200, [_JSON, *came.labels], body)

    async def _route(self, came: Incoming) -> None:
        exchange, fields = came.exchange, came.fields
        receive: Any = exchange.receive
        if b"content-length" in fields or b"transfer-encoding" in fields:
            body = await body_of(exchange, fields.get(b"content-length"), max_bytes=MAX_CONTROL_BODY_BYTES)
            receive = _Replayed(body, receive)
        scope = scope_of(exchange)
        if (HEADER, came.name) not in exchange.headers:
            scope["headers"] = [*exchange.headers, (HEADER, came.name)]
        await self._routes(scope, receive, _Labelled(exchange.send, came.labels))

    async def _respond(self, came: Incoming) -> None:
        exchange, fields = came.exchange, came.fields
        body = await self._body_of(came)
        # Only what asks for an answer; the rest is looked up.
        if exchange.method == "POST":
            self._begin(came)
        await self._responses(
            Asked(
                exchange,
                exchange.method,
                exchange.raw_path,
                exchange.query,
                fields,
                body,
                came.labels,
                lambda model, mark: self._found(came, model, mark),
                came.mark,
            )
        )

    def _forward(self, came: Incoming) -> Work | None:
        self._begin(came)
        exchange, max_bytes = came.exchange, self._max_body_bytes
        body = body_at_once(exchange, max_bytes=max_bytes)
        if body is not None:
            self._relay(came, body)
        elif is_on_its_way(exchange, came.fields.get(b"content-length"), max_bytes=max_bytes):
            exchange.when_whole = functools.partial(self._forward_whole, came)
        else:
            return self._forward_later(came)
        return None

    def _forward_whole(self, came: Incoming) -> None:
        """The body has come, after the head."""
        body = came.exchange.whole_body()
        assert body is not None
        try:
            self._relay(came, body)
        except PublicError as error:
            self._refuse(came, error)

    def _relay(self, came: Incoming, body: bytes) -> None:
        Relay(self._forwarded(came, body), self._pool).begin(functools.partial(self._go_on, came))

    async def _forward_later(self, came: Incoming) -> None:
        """Once the body is there."""
        body = await self._body_of(came)
        await forward(self._forwarded(came, body), self._pool)

    def _go_on(self, came: Incoming, work: Work) -> None:
        came.exchange.go_on(self._guarded(came, work))

    def _forwarded(self, came: Incoming, body: bytes) -> Forwarded:
        """What is asked of which worker. Raises PublicError."""
        exchange = came.exchange
        path = exchange.raw_path
        wanted = wanted_of(body, self._catalog)
        entry = wanted.entry
        self._found(came, entry.id, came.mark)
        return Forwarded(
            exchange,
            entry,
            came.api,
            exchange.method,
            path,
            came.fields,
            wanted.body,
            came.labels,
            ping_for(path, entry.id, self._server) if wanted.stream else None,
            mark=came.mark,
        )

    async def _body_of(self, came: Incoming) -> bytes:
        declared = came.fields.get(b"content-length")
        return await body_of(came.exchange, declared, max_bytes=self._max_body_bytes)

    def _begin(self, came: Incoming) -> None:
        """It gets a timeline."""
        came.mark = self._timelines.begin(came.name.decode(), came.path, came.at)

    def _found(self, came: Incoming, model: str, mark: Mark | None) -> None:
        """It turned out to be for this model, and so did the turn that `mark` is of."""
        came.model = model
        if mark is not None:
            mark.parsed(model, self._pool.state_of(model))


class _Labelled:
    """A `send` that adds headers to the answer."""

    def __init__(self, send: Any, headers: Headers) -> None:
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

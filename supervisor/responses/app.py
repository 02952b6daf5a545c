"""`/v1/responses` and `/v1/conversations`: what of them is not just passed on to a worker.

Source: OpenAI's API reference, "Responses" and "Conversations".
"""

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shared import sse
from shared.errors import Api, PublicError, invalid
from shared.headers import Headers, naming
from shared.responses.answer import Response, error_event
from shared.responses.asked import parse_asked
from supervisor.database import Database, DatabaseError
from supervisor.history.conversations import Conversations
from supervisor.history.history import History
from supervisor.history.kept import Kept
from supervisor.http.exchange import Exchange
from supervisor.pings import Ping, Pings, ping_for
from supervisor.relay import Forwarded, Slots, Wanted, forward
from supervisor.responses.background import Background, Run, replay
from supervisor.responses.condensing import compacted, fitted
from supervisor.responses.conversing import Conversing
from supervisor.responses.failures import history_unavailable
from supervisor.responses.queries import Query
from supervisor.responses.recorder import Recorder
from supervisor.responses.turns import Resolved, resolve
from supervisor.settings import HistorySettings, ServerSettings
from supervisor.telemetry.timelines import Mark, Timelines

_JSON: Final = (b"content-type", b"application/json")
_MAX_SEQUENCE: Final = 10**12


class Asked(msgspec.Struct, frozen=True):
    """A request as the front hands it over. `labels` are headers that the answer carries."""

    exchange: Exchange
    method: str
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    body: bytes
    labels: Sequence[tuple[bytes, bytes]]
    found: Callable[[str, Mark | None], None]
    """Told the id of the model, once it is known, and whose timeline is to say so."""
    mark: Mark | None = None
    """Of its timeline."""


class Responses:
    """The routes. `wanted` finds the model that a body names, or raises PublicError."""

    def __init__(
        self,
        *,
        database: Database,
        settings: HistorySettings,
        server: ServerSettings,
        pool: Slots,
        timelines: Timelines,
        wanted: Callable[[bytes], Wanted],
    ) -> None:
        self._database = database
        self.history = History(database, settings)
        self.background = Background(self.history, pool, timelines)
        self._conversing = Conversing(Conversations(database), self.history)
        self._pool = pool
        self._server = server
        self._timelines = timelines
        self._wanted = wanted

    @property
    def trouble(self) -> str | None:
        """Why nothing can be kept now; None when it can."""
        return self._database.trouble

    async def start(self) -> None:
        """Look after what an earlier supervisor kept. Raises DatabaseError."""
        await self.history.start()

    async def close(self) -> None:
        """Let go of what is under way; the workers have been ended."""
        await self.background.close()

    async def __call__(self, asked: Asked) -> None:
        """Raises PublicError when nothing went out, and ClientGone."""
        try:
            await self._dispatch(asked)
        except DatabaseError as error:
            raise history_unavailable(error) from error

    async def _dispatch(self, asked: Asked) -> None:
        # ["v1", "responses", ...]
        names = [urllib.parse.unquote(name.decode("latin-1")) for name in asked.path.split(b"/")[1:]]
        query = Query(asked.query)
        method = "GET" if asked.method == "HEAD" else asked.method
        conversing = self._conversing
        match names[1:]:
            case ["responses"] if method == "GET" and _is_websocket(asked.fields):
                await self._converse(asked)
            case ["responses"]:
                _only(method, "POST")
                await self._create(asked)
            case ["responses", "input_tokens"]:
                _only(method, "POST")
                await self._count(asked)
            case ["responses", "compact"]:
                _only(method, "POST")
                _reply(asked, await self._compact(asked))
            case ["responses", name] if name:
                _only(method, "GET", "DELETE")
                if method == "DELETE":
                    _reply(asked, await self._delete(name))
                else:
                    await self._get(asked, name, query)
            case ["responses", name, "cancel"] if name:
                _only(method, "POST")
                _reply(asked, await self._cancel(name))
            case ["responses", name, "input_items"] if name:
                _only(method, "GET")
                page = await self.history.input_items(name, query.paging())
                if page is None:
                    raise unknown(name)
                _reply(asked, page.shown())
            case ["conversations"]:
                _only(method, "POST")
                _reply(asked, await conversing.create(asked.body))
            case ["conversations", name] if name:
                _only(method, "GET", "POST", "DELETE")
                match method:
                    case "GET":
                        _reply(asked, await conversing.get(name))
                    case "POST":
                        _reply(asked, await conversing.update(name, asked.body))
                    case "DELETE":
                        _reply(asked, await conversing.delete(name))
            case ["conversations", name, "items"] if name:
                _only(method, "GET", "POST")
                if method == "GET":
                    _reply(asked, await conversing.list_items(name, query))
                else:
                    _reply(asked, await conversing.add_items(name, asked.body))
            case ["conversations", name, "items", item] if name and item:
                _only(method, "GET", "DELETE")
                if method == "GET":
                    _reply(asked, await conversing.get_item(name, item))
                else:
                    _reply(asked, await conversing.delete_item(name, item))
            case _:
                raise PublicError(404, "not_found", "There is nothing at this path.")

    async def resolved(self, asked: Asked) -> Resolved:
        """The request with all that it refers to. Raises PublicError."""
        wanted = self._wanted(asked.body)
        asked.found(wanted.entry.id, asked.mark)
        return await resolve(parse_asked(wanted.body), wanted, self.history)

    async def _create(self, asked: Asked) -> None:
        request = await self.resolved(asked)
        if request.asked.truncation == "auto" and not request.asked.background:
            fitting = await self._fitted(asked, request)
            if fitting is None:
                return
            request = fitting
        if request.asked.background:
            run = await self.background.begin(request, naming(asked.fields), asked.mark)
            if request.asked.stream:
                await _follow(asked, run)
            else:
                _reply(asked, run.response)
            return
        recorder = Recorder(request, self.history)
        try:
            await forward(self._forwarded(asked, request, b"/v1/responses", recorder), self._pool)
        finally:
            recorder.left()

    async def _fitted(self, asked: Asked, request: Resolved) -> Resolved | None:
        """See `fitted`. None when the client was told of an error within its stream."""
        # A model takes its time for a summary.
        try:
            with Pings(asked.exchange, self._ping(request), asked.labels), asked.exchange.while_connected():
                return await fitted(request, self._pool)
        except PublicError as error:
            if not asked.exchange.started:
                raise
            asked.exchange.finish(error_event(error, 0))
            return None

    def _ping(self, request: Resolved) -> Ping | None:
        if not request.asked.stream:
            return None
        return ping_for(b"/v1/responses", request.entry.id, self._server)

    async def _converse(self, asked: Asked) -> None:
        """Over WebSocket. Few use it, so what it takes is imported now."""
        from supervisor.http.websocket import WebSocket
        from supervisor.responses.socket import Session

        socket = WebSocket(
            asked.exchange, asked.fields, asked.labels, max_message_bytes=self._server.max_body_bytes
        )
        session = Session(
            socket,
            history=self.history,
            pool=self._pool,
            wanted=self._wanted,
            found=asked.found,
            fields=asked.fields,
            timelines=self._timelines,
        )
        await session.run()

    async def _count(self, asked: Asked) -> None:
        request = await self.resolved(asked)
        await forward(self._forwarded(asked, request, asked.path, None), self._pool)

    def _forwarded(
        self, asked: Asked, request: Resolved, path: bytes, recorder: Recorder | None
    ) -> Forwarded:
        return Forwarded(
            asked.exchange,
            request.entry,
            Api.OPENAI,
            "POST",
            path,
            asked.fields,
            request.body(),
            asked.labels,
            self._ping(request),
            told=(request.header(),),
            witness=recorder,
            mark=asked.mark,
        )

    async def _compact(self, asked: Asked) -> Response:
        request = await self.resolved(asked)
        items = [*request.before, *request.input]
        with asked.exchange.while_connected():
            return await compacted(items, request.entry, self._pool, instructions=request.asked.instructions)

    async def _get(self, asked: Asked, name: str, query: Query) -> None:
        after = query.whole("starting_after", 0, _MAX_SEQUENCE)
        streaming = query.switch("stream")
        query.switch("include_obfuscation")
        if after is not None and not streaming:
            raise invalid("`starting_after` is for `stream=true`.", param="starting_after")
        run = self.background.get(name)
        if run is not None:
            if streaming and not run.streamed:
                raise _not_streamed()
            if streaming:
                await _follow(asked, run, -1 if after is None else after)
            else:
                _reply(asked, run.response, run.warnings)
            return
        kept = await self._kept(name)
        if not streaming:
            _reply(asked, kept.response, kept.warnings)
            return
        if not kept.streamed:
            raise _not_streamed()
        data = replay(kept.response, kept.events, -1 if after is None else after)
        _begin_events(asked, kept.warnings)
        asked.exchange.finish(data + sse.DONE)

    async def _delete(self, name: str) -> Any:
        if (run := self.background.get(name)) is not None:
            await run.cancel()
        if not await self.history.delete_response(name):
            raise unknown(name)
        return {"id": name, "object": "response", "deleted": True}

    async def _cancel(self, name: str) -> Response:
        run = self.background.get(name)
        if run is not None and not run.over:
            return await run.cancel()
        kept = await self._kept(name)
        if not kept.background:
            raise invalid("Only a response with `background: true` can be cancelled.", param="response_id")
        status = kept.response["status"]
        if status != "cancelled":
            raise PublicError(
                400, "response_ended", f"The response is {status} already.", param="response_id"
            )
        return kept.response

    async def _kept(self, name: str) -> Kept:
        if (run := self.background.get(name)) is not None and run.over:
            await run.wait()
        kept = await self.history.response(name)
        if kept is None:
            raise unknown(name)
        return kept


def unknown(name: str) -> PublicError:
    """404 for a response that is not kept."""
    return PublicError(404, "response_not_found", f"Response with id '{name[:80]}' not found.")


def _not_streamed() -> PublicError:
    return invalid(
        "Only a response that was created with `background: true` and `stream: true` can be streamed again.",
        param="stream",
    )


def _only(method: str, *allowed: str) -> None:
    if method not in allowed:
        allow = ", ".join(allowed)
        raise PublicError(
            405,
            "method_not_allowed",
            f"This path takes {allow} only.",
            headers=((b"allow", allow.encode()),),
        )


def _is_websocket(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(b"upgrade", b"").lower() == b"websocket"


def _reply(asked: Asked, body: Any, warnings: Sequence[str] = ()) -> None:
    data = msgspec.json.encode(body)
    exchange = asked.exchange
    length = (b"content-length", b"%d" % len(data))
    exchange.begin(200, [_JSON, *asked.labels, *_headers(warnings), length])
    exchange.finish(b"" if asked.method == "HEAD" else data)


def _headers(warnings: Sequence[str]) -> Headers:
    return [(b"warning", warning.encode()) for warning in warnings]


def _begin_events(asked: Asked, warnings: Sequence[str]) -> None:
    asked.exchange.begin(200, [*sse.HEADERS, *asked.labels, *_headers(warnings)])


async def _follow(asked: Asked, run: Run, after: int = -1) -> None:
    """The events of `run` with a higher number than `after`, to its end."""
    exchange = asked.exchange
    with exchange.while_connected():
        _begin_events(asked, run.warnings)
        async for data in run.follow(after):
            if (blocked := exchange.write(data)) is not None:
                await blocked
        exchange.finish(sse.DONE)

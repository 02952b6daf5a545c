"""One request and its answer on an HTTP/1.1 connection."""

import asyncio
import http
import urllib.parse
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Literal, Protocol

from shared.headers import Headers
from shared.sockets import peer_pid
from supervisor.http.connected import ClientGone, WhileConnected
from supervisor.http.reader import Head
from supervisor.http.upgraded import Upgraded

Message = dict[str, Any]
Work = Coroutine[Any, Any, None]
Handler = Callable[["Exchange"], Work | None]
"""Answers a request: an application. It does so at once, or sets in motion what will and watches the exchange
meanwhile, or returns what is to be awaited for it, in a task. It may raise."""

HIGH_WATER_BYTES: Final = 64 * 1024
"""Reading from the client pauses while the application has more than this of a body before it."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_EVENT_END: Final = b"\n\n"
EXTENSION: Final = "mlx_supervisor.exchange"
"""Where in the scope's `extensions` an ASGI application finds its Exchange."""

# How the end of an answer's body is told.
_Framing = Literal["none", "length", "chunked", "close"]
_TELLING: Final = frozenset({b"content-length", b"connection", b"content-type"})
"""Headers of an answer that the connection has to do with."""
_BODILESS: Final = frozenset({204, 304})
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}


def status_line(status: int) -> bytes:
    """The first line of an answer, with its line end."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Wire(Protocol):
    """What an exchange needs of its connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    blocked: asyncio.Future[None] | None
    """Pending while the transport has more to write than it wants."""

    def body_taken(self) -> None: ...
    def finished(self, exchange: "Exchange") -> None: ...
    def go_on(self, exchange: "Exchange", work: Work) -> None: ...
    def failed(self, exchange: "Exchange", error: Exception) -> None: ...
    def over(self, exchange: "Exchange") -> None: ...
    def upgraded(self, exchange: "Exchange") -> Upgraded: ...
    def abort(self) -> None: ...


class Exchange:
    """The request's head, its body as it comes, and the answer to it.

    An answer is `answer`, or `begin`, `write` and `finish`; none of them waits. `receive` and `send` are
    ASGI's: see `supervisor.http.asgi`.
    """

    __slots__ = (
        "_body",
        "_body_given",
        "_expects_continue",
        "_framing",
        "_head",
        "_is_event_stream",
        "_last_body",
        "_on_gone",
        "_remaining_bytes",
        "_waiter",
        "_wire",
        "begun",
        "body_complete",
        "buffered_bytes",
        "client",
        "complete",
        "fields",
        "gone",
        "headers",
        "http_version",
        "keep_alive",
        "method",
        "query",
        "raw_path",
        "started",
        "status",
        "task",
        "when_over",
        "when_whole",
    )

    def __init__(
        self, wire: Wire, head: Head, *, keep_alive: bool, client: tuple[str, int] | None = None
    ) -> None:
        self.method = head.method
        self.raw_path, _, self.query = head.target.partition(b"?")
        self.http_version = head.http_version
        self.headers = head.headers
        """By names in lower case."""
        self.fields = head.fields
        """The headers by name, of one that comes several times the last."""
        self.client = client
        self.keep_alive = keep_alive
        self.begun = False  # the application has it
        self.task: asyncio.Task[None] | None = None
        """That works on the answer, if one does; the connection's."""
        self.when_over: Callable[[], None] | None = None
        """Called once, when the answer is complete or the client gone, and no task works on it."""
        self.when_whole: Callable[[], None] | None = None
        """Called once, when the body has come, for an application that waits for it without a task."""
        self.body_complete = False
        self.buffered_bytes = 0
        self.started = False
        self.status = 0
        """Of the answer, once it has begun; 0 when the client left before."""
        self.complete = False
        self.gone = False
        """The client disconnected, or the connection was given up: whatever is sent goes nowhere."""
        self._wire = wire
        self._expects_continue = head.expects_continue
        self._body: list[bytes] = []
        self._body_given = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_gone: Callable[[], None] | None = None
        self._head = b""
        self._framing: _Framing = "none"
        self._remaining_bytes = 0
        self._is_event_stream = False
        self._last_body = _EVENT_END

    @staticmethod
    def of(scope: dict[str, Any]) -> "Exchange":
        """The exchange of the request that an ASGI `scope` describes."""
        exchange: Exchange = scope["extensions"][EXTENSION]
        return exchange

    @property
    def path(self) -> str:
        """What `raw_path` spells."""
        path = self.raw_path.decode("latin-1")
        return urllib.parse.unquote(path) if "%" in path else path

    @property
    def peer_pid(self) -> int | None:
        """The process that opened the connection, where the system tells: on a Unix socket."""
        if self.client is not None or self.gone:
            return None
        return peer_pid(self._wire.transport.get_extra_info("socket"))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The connection's."""
        return self._wire.loop

    @property
    def last_piece(self) -> bytes:
        """What was written last of a body without a length: another object after each `write`."""
        return self._last_body

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return self._expects_continue

    def go_on(self, work: Work) -> None:
        """Have a task do the rest, of a request that none works on so far."""
        self._wire.go_on(self, work)

    def fail(self, error: Exception) -> None:
        """A fault of the program ended the work on it."""
        self._wire.failed(self, error)

    def while_connected(self) -> "WhileConnected":
        """A context manager that ends its block with ClientGone when the client disconnects."""
        return WhileConnected(self)

    async def receive(self) -> Message:
        """The next piece of the request's body, then `http.disconnect` when the client is gone."""
        if self._expects_continue and not (self.gone or self.started):
            self._expects_continue = False
            self._wire.transport.write(_CONTINUE)
        while not (self.gone or self.complete):
            if self._body or (self.body_complete and not self._body_given):
                body = self._take_body()
                return {"type": "http.request", "body": body, "more_body": not self._body_given}
            self._waiter = self._wire.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return {"type": "http.disconnect"}

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it is there. Nothing of it was taken, and nothing is left then."""
        return self._take_body() if self.body_complete and not (self._body_given or self.gone) else None

    def _take_body(self) -> bytes:
        self._body_given = self.body_complete
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self.buffered_bytes = 0
        self._wire.body_taken()
        return body

    async def send(self, message: Message) -> None:
        """A part of the answer. Waits while the client reads too slowly; drops it when the client is gone."""
        await self.writable()
        if message["type"] == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
        elif message.get("more_body", False):
            self.write(message.get("body", b""))
        else:
            self.finish(message.get("body", b""))

    @property
    def unread(self) -> bool:
        """Whether the client reads so slowly, or not at all, that the next piece would have to wait."""
        return self._wire.blocked is not None

    async def writable(self) -> None:
        """Wait until the client has read enough of what was sent, or is gone."""
        while self._wire.blocked is not None and not self.gone:
            await asyncio.shield(self._wire.blocked)

    def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """A whole answer. Its length is told, if `headers` don't tell it."""
        if not self.gone:
            self._open(status, headers, body)
            self.finish(body)

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of the answer."""
        if not self.gone:
            self._open(status, headers, None)
            # It mostly goes out with the first piece of the body; a write costs more than all this here.
            self._wire.loop.call_soon(self._send, b"")

    def _open(self, status: int, headers: Iterable[tuple[bytes, bytes]], whole: bytes | None) -> None:
        """Make the head of the answer, whose body is `whole` if that is all of it."""
        if self.started:
            raise RuntimeError("a second head was sent for one answer")
        self.status = status
        length: bytes | None = None
        lines = [_STATUS_LINES.get(status) or status_line(status)]
        for name, value in headers:
            key = name.lower()
            if key in _TELLING:
                if key == b"content-length":
                    length = value
                elif key == b"connection":
                    self.keep_alive = self.keep_alive and b"close" not in value.lower()
                    continue
                else:
                    self._is_event_stream = value.startswith(b"text/event-stream")
            lines += (name, b": ", value, b"\r\n")
        if length is None and whole is not None and status not in _BODILESS:
            length = b"%d" % len(whole)
            lines += (b"content-length", b": ", length, b"\r\n")
        if status in _BODILESS or self.method == "HEAD":
            self._framing = "none"
        elif length is not None:
            self._framing = "length"
            self._remaining_bytes = int(length)
        elif self.http_version == "1.1":
            self._framing = "chunked"
            lines += (b"transfer-encoding", b": ", b"chunked", b"\r\n")
        else:
            self._framing = "close"
            self.keep_alive = False
        # What is left of an unread body would be taken for the next request.
        self.keep_alive = self.keep_alive and self.body_complete
        if not self.keep_alive:
            lines += (b"connection", b": ", b"close", b"\r\n")
        expected = 2 + len(lines) // 4
        head = b"".join([*lines, b"\r\n"])
        if head.count(b"\n") != expected or head.count(b"\r") != expected:
            raise RuntimeError("a header of an answer was more than one line")
        self.started = True
        self._head = head

    def write(self, body: bytes) -> asyncio.Future[None] | None:
        """A piece of the answer's body, of which more follows.

        When a future comes back, the client reads slowly: whoever has more waits until it is done.
        """
        if self.gone:
            return None
        self._check_open()
        if body and self._framing == "chunked":
            self._last_body = body
            self._send(b"%x\r\n%b\r\n" % (len(body), body))
        elif body and self._framing != "none":
            self._count(len(body))
            self._send(body)
        return self._wire.blocked

    def finish(self, body: bytes = b"") -> None:
        """The last piece of the answer's body, and its end."""
        if self.gone:
            return
        self._check_open()
        if self._framing == "chunked":
            self._send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n")
        elif self._framing == "none":
            self._send(b"")
        else:
            self._count(len(body))
            if self._framing == "length" and self._remaining_bytes:
                raise RuntimeError("an answer was shorter than its content-length")
            self._send(body)
        self.complete = True
        if self._waiter is not None:
            self._wake()
        self._wire.finished(self)
        if self.task is None:
            self._wire.over(self)

    def upgrade(self, headers: Iterable[tuple[bytes, bytes]]) -> Upgraded:
        """Answer 101: from here on the connection speaks what the request offered. Raises ClientGone."""
        if self.gone:
            raise ClientGone
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.started = self.complete = True
        self.status = 101
        upgraded = self._wire.upgraded(self)
        self._wire.transport.write(b"".join([status_line(101), b"connection: upgrade\r\n", *lines, b"\r\n"]))
        return upgraded

    def abort(self) -> None:
        """Cut the connection, so that the client can't take what it got for a whole answer."""
        self._on_gone = None  # the application knows
        self._wire.abort()

    def _check_open(self) -> None:
        if not self.started or self.complete:
            raise RuntimeError("a part of an answer's body was sent outside of the answer")

    def _count(self, size_bytes: int) -> None:
        self._remaining_bytes -= size_bytes
        if self._remaining_bytes < 0 and self._framing == "length":
            raise RuntimeError("an answer was longer than its content-length")

    def _send(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        if data and not self.gone:
            self._wire.transport.write(data)

    # What follows is called by the connection.

    def feed(self, body: bytes) -> None:
        """A piece of the request's body has come."""
        self._expects_continue = False
        if not self.complete and not self.gone:
            self._body.append(body)
            self.buffered_bytes += len(body)
            if self._waiter is not None:
                self._wake()

    def end_body(self) -> None:
        """The request is complete."""
        self._expects_continue = False
        self.body_complete = True
        if self._waiter is not None:
            self._wake()

    def lose(self, status: int = 0) -> None:
        """The client is gone, or the connection answers it with `status`, behind the application's back."""
        if not self.gone:
            self.gone = True
            self.status = self.status or status
            self._body.clear()
            self._wake()
            if self._on_gone is not None and not self.complete:
                self._on_gone()
            if self.task is None:
                self._wire.over(self)

    def probe(self) -> None:
        """Send something that means nothing, if the answer is at a point that allows it: an interim answer
        before the head, a comment between two events. Anything else that is sent soon does as well."""
        if self._wire.blocked is not None or self.http_version != "1.1":
            return
        if not self.started:
            self._send(_CONTINUE)
        elif self._is_event_stream and self._framing == "chunked" and self._last_body.endswith(_EVENT_END):
            self._send(b"3\r\n:\n\n\r\n")

    def ping(self, event: bytes) -> None:
        """Send an event that means nothing, if the answer is a stream of events at a point that allows it."""
        between = self._last_body.endswith(_EVENT_END)
        if self._is_event_stream and self._framing == "chunked" and between and self._wire.blocked is None:
            self.write(event)

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Call `on_gone` at the disconnect; None calls nobody."""
        self._on_gone = on_gone

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

"""One connection to a worker, and the answer that comes on it.

It is on the path of every generated token, so it does no more per piece than parse and hand over.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, cast

import httptools

MAX_HEAD_BYTES: Final = 64 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
"""Reading from the worker pauses while a consumer has more than this before it; one read may come on top."""
_JOIN_BELOW_BYTES: Final = 16 * 1024
_HOST: Final = b"host: worker\r\n"

Headers = Sequence[tuple[bytes, bytes]]
Sink = Callable[[bytes], "asyncio.Future[None] | None"]
"""Takes a piece of a body. A future that it returns is pending until it can take the next one."""


class UpstreamError(Exception):
    """Raised when a worker can't be reached, or its answer was cut.

    `began` says whether the head of an answer had come, `connected` whether the worker took the connection.
    The message is for the log.
    """

    def __init__(self, message: str, *, began: bool, connected: bool = True) -> None:
        super().__init__(message)
        self.began = began
        self.connected = connected


class UpstreamResponse:
    """An answer that comes, or has come.

    An async context manager: leaving it before the end closes the connection, so that the worker stops.
    """

    __slots__ = (
        "_buffered_bytes",
        "_chunks",
        "_connection",
        "_ended",
        "_error",
        "_sink",
        "_sink_error",
        "_sink_waits",
        "_waiter",
        "headers",
        "on_arrival",
        "status",
    )

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        """0 until the head has come."""
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._ended = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._sink_waits = False
        self._sink_error: Exception | None = None
        self.on_arrival: Callable[[], None] | None = None
        """Called once, instead of waking who waits, when the head or the end has come. Must not raise."""

    async def __aenter__(self) -> Self:
        return self

    def warnings(self) -> tuple[str, ...]:
        """The values of its `Warning` headers: what of the request is not done as asked."""
        return tuple(value.decode("utf-8", "replace") for name, value in self.headers if name == b"warning")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection up if the answer has not ended. The rest of the answer is dropped."""
        if not self._ended and self._error is None:
            self._connection.fail("the answer was left before its end")
        self._chunks.clear()

    async def head(self) -> None:
        """Wait until the head has come. Raises UpstreamError when none comes."""
        try:
            while self.status == 0 and not self._is_over():
                await self._wait()
        except asyncio.CancelledError:
            # Not the connection itself: the answer may be complete, and the next request on its way.
            self.close()
            raise
        if self.status == 0:
            await self.read()  # raises what ended it

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The body as it came since the last call, decoded. Raises UpstreamError if it was cut."""
        if not self._chunks:
            if not self._is_over():
                await self._wait()
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
        return self._take()

    @property
    def ended(self) -> bool:
        """All of it has come."""
        return self._ended

    def whole(self) -> bytes:
        """The body of an answer that has `ended`, as far as it was not taken before."""
        return self._take() if self._chunks else b""

    async def read(self) -> bytes:
        """The rest of the body. Raises UpstreamError if it was cut."""
        return b"".join([chunk async for chunk in self])

    async def pipe(self, sink: Sink) -> None:
        """Give the rest of the body to `sink`, piece by piece as it comes. Raises UpstreamError if it was
        cut, and what `sink` raises.

        `sink` is called from the socket's reader: waking a task for each piece would cost more than all
        that is done with it. The worker is held back while `sink` waits.
        """
        self._sink = sink
        try:
            self._drain()
            while self._sink_error is None and (self._chunks or not self._is_over()):
                await self._wait()
        finally:
            self._sink = None
        if self._sink_error is not None:
            raise self._sink_error
        if self._error is not None:
            raise self._error

    def _is_over(self) -> bool:
        return self._ended or self._error is not None

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self.on_arrival is not None:
            told, self.on_arrival = self.on_arrival, None
            told()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> bytes:
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        if self._buffered_bytes > HIGH_WATER_BYTES:
            self._connection.resume()
        self._buffered_bytes = 0
        return body

    def _drain(self) -> None:
        if not self._chunks or self._sink_waits or self._sink is None:
            return
        try:
            pending = self._sink(self._take())
        except Exception as error:
            self._sink_error = error  # raised in the task that pipes
            self._wake()
            return
        if pending is not None:
            self._sink_waits = True
            pending.add_done_callback(self._sink_can_go_on)

    def _sink_can_go_on(self, _: object) -> None:
        self._sink_waits = False
        self._drain()
        if self._is_over():
            self._wake()

    # What follows is called by the connection.

    def feed(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > HIGH_WATER_BYTES:
            self._connection.pause()

    def end(self, error: UpstreamError | None = None) -> None:
        if self._ended or self._error is not None:
            return
        self._ended = error is None
        self._error = error
        if self._sink is not None:
            self._drain()
        self._wake()

    def arrived(self) -> None:
        """What one read brought has been fed, the head or a part of the body."""
        if self._sink is not None:
            self._drain()
        else:
            self._wake()

    @property
    def has_body(self) -> bool:
        return bool(self._chunks)


class Owner(Protocol):
    """Who keeps connections."""

    def returned(self, connection: "Connection") -> None: ...
    def dropped(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One connection: at most one request at a time, and the answer to it."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._paused = False
        self._usable = True
        # The exchange in hand.
        self._response: UpstreamResponse | None = None
        self._is_head_request = False
        self._head_bytes = 0
        self._interim = False
        self._complete = False
        self._keep_alive = False

    def send(self, method: str, target: bytes, headers: Headers, body: bytes) -> UpstreamResponse:
        """Send a request. Returns its answer, whose head is still to come."""
        assert self._transport is not None
        lines = [method.encode(), b" ", target, b" HTTP/1.1\r\n", _HOST]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        response = self._response = UpstreamResponse(self)
        self._is_head_request = method == "HEAD"
        self._head_bytes = 0
        self._complete = False
        if len(body) < _JOIN_BELOW_BYTES:
            lines.append(body)
            self._transport.write(b"".join(lines))
        else:
            self._transport.write(b"".join(lines))
            self._transport.write(body)
        return response

    def is_fresh(self, oldest: float) -> bool:
        """Whether an idle connection may carry another request.

        Its end may have arrived without the loop having seen it, so the kernel is asked.
        """
        return self._usable and self.idle_since >= oldest and not self._poll.poll(0)

    def pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if self._usable:
                self._transport.resume_reading()

    def fail(self, reason: str) -> None:
        """End the connection, and the exchange on it with an error."""
        self._usable = False
        if self._transport is not None:
            self._transport.abort()
        response, self._response = self._response, None
        if response is not None:
            response.end(UpstreamError(reason, began=response.status != 0))
        self._owner.dropped(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.fail("the worker spoke without being asked")
            return
        awaited = response.status == 0
        if awaited:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("the worker switched protocols")
            return
        except httptools.HttpParserError as error:
            self.fail(f"the worker's answer is not HTTP: {error.__context__ or error}")
            return
        if self._complete:
            self._finish(response)
        elif response.status == 0:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.fail("the head of the worker's answer is too long")
        elif awaited or response.has_body:
            response.arrived()

    def eof_received(self) -> None:
        response = self._response
        if response is not None and response.status and self._ends_with_connection(response):
            self._keep_alive = False
            self._finish(response)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(f"the worker closed the connection{f': {error}' if error else ''}")

    def _ends_with_connection(self, response: UpstreamResponse) -> bool:
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in response.headers)

    def _finish(self, response: UpstreamResponse) -> None:
        assert self._transport is not None
        self._response = None
        response.end()
        # An answer may come before the request is out: what is left of it would be taken for the next one.
        if self._keep_alive and not self._transport.get_write_buffer_size():
            if self._paused:
                self.resume()
            self._owner.returned(self)
        else:
            self.fail("the answer ended")

    # Callbacks of the parser. One that raises stops it.

    def on_message_begin(self) -> None:
        if self._response is None or self._complete:
            raise _ProtocolError("more than one answer to a request")
        self._response.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields after the body are of no use to anyone here.
        if self._response is not None and self._response.status == 0:
            self._response.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200 and status != 101
        if self._interim:
            return
        response.status = status
        if self._is_head_request:
            # The parser can't be told that no body follows: it serves no second request.
            self._complete = True
            self._keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._complete:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        if not self._interim and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()


class _ProtocolError(Exception):
    """Raised inside a parser callback to refuse what the worker sent."""

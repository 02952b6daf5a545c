"""A small HTTP/1.1 client over a worker's Unix socket.

It sits on the path of every generated token, so it does no more per chunk than parse and hand over.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import httptools

IDLE_S: Final = 60.0
"""How long an idle connection is kept. The worker keeps its end for 120 s, so it never closes first."""
MAX_IDLE: Final = 128
MAX_HEAD_BYTES: Final = 64 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
"""Reading from the worker pauses while a consumer has more than this before it; one read may come on top."""
_JOIN_BELOW_BYTES: Final = 16 * 1024
_HOST: Final = b"host: worker\r\n"

Headers = Sequence[tuple[bytes, bytes]]


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
    """An answer whose head has come.

    An async context manager: leaving it before the end closes the connection, so that the worker stops.
    """

    def __init__(self, connection: "_Connection") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._ended = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection up if the answer has not ended. The rest of the answer is dropped."""
        if not self._ended and self._error is None:
            self._connection.fail("the answer was left before its end")
        self._chunks.clear()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The body as it came since the last call, decoded. Raises UpstreamError if it was cut."""
        if not self._chunks:
            if self._error is None and not self._ended:
                self._waiter = self._connection.loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            if not self._chunks:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        if self._buffered_bytes > HIGH_WATER_BYTES:
            self._connection.resume()
        self._buffered_bytes = 0
        return body

    async def read(self) -> bytes:
        """The rest of the body. Raises UpstreamError if it was cut."""
        return b"".join([chunk async for chunk in self])

    # What follows is called by the connection.

    def feed(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes > HIGH_WATER_BYTES:
            self._connection.pause()

    def end(self, error: UpstreamError | None = None) -> None:
        if not self._ended and self._error is None:
            self._ended = error is None
            self._error = error
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def has_body(self) -> bool:
        return bool(self._chunks)


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time, and the answer to it."""

    def __init__(self, owner: "Upstream", loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._paused = False
        self._usable = True
        # The exchange in hand.
        self._head: asyncio.Future[None] | None = None
        self._response: UpstreamResponse | None = None
        self._is_head_request = False
        self._head_bytes = 0
        self._interim = False
        self._complete = False
        self._keep_alive = False

    async def request(self, method: str, target: bytes, headers: Headers, body: bytes) -> UpstreamResponse:
        """Send a request and wait for the head of its answer."""
        assert self._transport is not None
        lines = [method.encode(), b" ", target, b" HTTP/1.1\r\n", _HOST]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        self._head = self.loop.create_future()
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
        try:
            await self._head
        except asyncio.CancelledError:
            # Not the connection itself: the answer may be complete, and the next request on its way.
            response.close()
            raise
        if response.status == 0:
            await response.read()  # raises what ended it
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
            self._head_came()
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
        if response.status == 0:
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
        elif response.status == 0 and self._head_bytes > MAX_HEAD_BYTES:
            self.fail("the head of the worker's answer is too long")
        elif response.has_body:
            response.wake()

    def eof_received(self) -> None:
        response = self._response
        if response is not None and response.status and self._ends_with_connection(response):
            self._keep_alive = False
            self._finish(response)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(f"the worker closed the connection{f': {error}' if error else ''}")

    def _head_came(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def _ends_with_connection(self, response: UpstreamResponse) -> bool:
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in response.headers)

    def _finish(self, response: UpstreamResponse) -> None:
        assert self._transport is not None
        self._response = None
        response.end()
        # An answer may come before the request is out: what is left of it would be taken for the next one.
        if self._keep_alive and not self._transport.get_write_buffer_size():
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
        self._head_came()

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._complete:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        if not self._interim and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()


class _ProtocolError(Exception):
    """Raised inside a parser callback to refuse what the worker sent."""


class Upstream:
    """The connections to one worker. Belongs to one event loop."""

    def __init__(self, socket: Path, *, idle_s: float = IDLE_S, max_idle: int = MAX_IDLE) -> None:
        self._path = str(socket)
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._closed = False
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, target: bytes, headers: Headers = (), body: bytes = b""
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its answer.

        `target` and `headers` go out as they are; host and content-length are added. Raises UpstreamError.
        """
        connection = await self._checkout()
        return await connection.request(method, target, headers, body)

    def close(self) -> None:
        """End every connection; open answers end with UpstreamError. Idempotent."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in [*self._idle, *self._busy]:
            connection.fail("the worker is being stopped")

    async def _checkout(self) -> _Connection:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_s
        # Last in, first out: the ones at the bottom grow old and leave.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh(oldest):
                self._busy.add(connection)
                return connection
            connection.fail("idle for too long, or closed by the worker")
        self._check_open()
        try:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self, loop), self._path)
        except OSError as error:
            raise UpstreamError(
                f"can't connect to the worker: {error.strerror or error}", began=False, connected=False
            ) from error
        self._busy.add(connection)
        try:
            self._check_open()
        except UpstreamError:
            connection.fail("the worker is being stopped")
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise UpstreamError("the worker is being stopped", began=False, connected=False)

    def returned(self, connection: _Connection) -> None:
        """Called by a connection whose answer ended in good order."""
        self._busy.discard(connection)
        if self._closed or len(self._idle) >= self._max_idle:
            connection.fail("no room for another idle connection")
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(self._idle_s, self._drop_old)

    def dropped(self, connection: _Connection) -> None:
        """Called by a connection that is over."""
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _drop_old(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_s
        for connection in [connection for connection in self._idle if connection.idle_since <= oldest]:
            connection.fail("idle for too long")
        # What was returned first is at the front.
        self._sweep = (
            loop.call_at(self._idle[0].idle_since + self._idle_s, self._drop_old) if self._idle else None
        )

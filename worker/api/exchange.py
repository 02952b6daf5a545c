"""One HTTP request and its answer, on raw ASGI."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from shared import sse
from shared.errors import Api, PublicError

BODY_LIMIT_BYTES: Final = 256 * 2**20
"""A last wall; the supervisor's own limit is lower."""

Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):  # noqa: N818  # nothing went wrong here
    """Raised in a task whose client disconnected. Nobody is left to be told."""


class Exchange:
    """An answer in the making, of JSON or of events. Sending to a client that is gone does nothing."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._api = Api.of_path(self.path)
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self.started = False
        self.finished = False
        self.streaming = False
        self._body: bytes | None = None

    def header(self, name: bytes) -> str | None:
        """The first header with this name, in lower case."""
        values = (value for other, value in self._headers if other == name)
        value = next(values, None)
        return None if value is None else value.decode("latin-1")

    async def body(self, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
        """The whole body. Raises PublicError 413 over the limit, ClientGone if it never comes."""
        if self._body is None:
            pieces: list[bytes] = []
            size = 0
            more = True
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limit_bytes:
                    raise PublicError(413, "body_too_large", f"The body may have {limit_bytes} bytes.")
                more = message.get("more_body", False)
            self._body = b"".join(pieces)
        return self._body

    def while_connected(self) -> "WhileConnected":
        """Run a block; when the client disconnects, stop it wherever it waits and raise ClientGone.

        The body must have been read: what comes of the client now is watched for its end only.
        """
        return WhileConnected(self, self._receive)

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def start_events(self, headers: Headers = ()) -> None:
        """Begin an event stream; from here on an error is its last event."""
        self.streaming = True
        await self.start(200, [*sse.HEADERS, *headers])

    async def write(self, data: bytes) -> None:
        """Some of the answer. Waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """The end of the answer."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole answer of JSON."""
        length = (b"content-length", str(len(body)).encode())
        kind = () if any(name == b"content-type" for name, _ in headers) else (_JSON,)
        await self.start(status, [*kind, *headers, length])
        await self.finish(body)

    async def fail(self, error: PublicError) -> None:
        """Tell the client about `error`, in whatever state the answer is."""
        if self.finished:
            return
        if not self.started:
            await self.answer(
                error.status, error.body(self._api, self.header(b"x-request-id")), error.headers()
            )
        else:
            await self.finish(error.frame(self._api, self.header(b"x-request-id")) if self.streaming else b"")


_JSON: Final = (b"content-type", b"application/json")


class WhileConnected:
    """See `Exchange.while_connected`."""

    def __init__(self, exchange: Exchange, receive: Any) -> None:
        self._exchange = exchange
        self._receive = receive
        self._block: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._cancelled = False

    def __enter__(self) -> None:
        self._block = asyncio.current_task()
        self._watch = asyncio.create_task(self._watch_client())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watch is not None and self._block is not None
        self._watch.cancel()
        # Somebody else may want the task gone as well; then that goes first.
        still_cancelled = self._cancelled and self._block.uncancel()
        if self._cancelled and not still_cancelled and kind is asyncio.CancelledError:
            raise ClientGone from None

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # uvicorn tells the end of the answer in the same way.
        if not self._exchange.finished and self._block is not None:
            self._cancelled = True
            self._block.cancel()

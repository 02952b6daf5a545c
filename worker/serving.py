"""uvicorn's HTTP/1.1 protocol on a listening socket that we bound ourselves.

`uvicorn.Server` itself is not used: it takes over the signals, wakes ten times a second, and changes the
mode of a Unix socket to 0666. Whoever gets through to the socket is our own supervisor, so uvicorn's missing
limits don't matter there. On a public port heads are bounded here, in size and time; slow bodies are not.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

App = Callable[[Any, Any, Any], Awaitable[None]]

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEAD_FIELDS: Final = 100
HEAD_S: Final = 10.0
"""From the connection, or from the first byte of a later head, to the head's end."""
_FAREWELL_S: Final = 0.5
"""What answers that were cut get to clean up after themselves."""


class WorkerServer:
    """Serves `app` on `listener`, which it owns from here on.

    `keep_alive_s` is how long an idle connection is kept. `accept` looks at a new connection's socket and
    says whether to serve it. `is_public` bounds the heads of requests.
    """

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        *,
        keep_alive_s: int,
        accept: Callable[[socket.socket], bool],
        is_public: bool = False,
    ) -> None:
        self._kind = _PublicConnection if is_public else _Connection
        self._listener = listener
        self._accept = accept
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._config = Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,
        )

    async def start(self) -> None:
        """Begin to accept."""
        self._config.load()
        loop = asyncio.get_running_loop()

        def connected() -> asyncio.Protocol:
            return self._kind(self._accept, config=self._config, server_state=self._state, app_state={})

        self._server = await loop.create_server(connected, sock=self._listener, backlog=1024)

    async def stop(self, *, grace_s: float) -> None:
        """Stop accepting, close idle connections, give open answers `grace_s`, then cut the rest."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_s)
        cut = list(self._state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=_FAREWELL_S)
        for connection in list(self._state.connections):
            connection.transport.abort()


class _Connection(HttpToolsProtocol):
    def __init__(self, accept: Callable[[socket.socket], bool], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's is none by inheritance
        if not self._accept(transport.get_extra_info("socket")):
            self.transport.abort()


class _PublicConnection(_Connection):
    """Refuses heads that are too large or too slow; uvicorn would read on for ever."""

    def __init__(self, accept: Callable[[socket.socket], bool], **arguments: Any) -> None:
        super().__init__(accept, **arguments)
        self._in_head = True
        self._head_bytes = 0
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit = self.loop.call_later(HEAD_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        if self._limit is None:
            self._limit = self.loop.call_later(HEAD_S, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        # uvicorn adds trailers to the head of a request that is being answered already.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm()
        self._in_head, self._head_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEAD_FIELDS:
            # It came in one piece. The parser makes a 400 of it and of nothing that follows.
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def _disarm(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

"""uvicorn's HTTP/1.1 protocol on a listening socket that we bound ourselves.

`uvicorn.Server` itself is not used: it takes over the signals, wakes ten times a second, and changes the
mode of a Unix socket to 0666. Whoever gets through to the socket is our own supervisor, so uvicorn's missing
limits don't matter here as they would at the public port.
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

_FAREWELL_S: Final = 0.5
"""What answers that were cut get to clean up after themselves."""


class WorkerServer:
    """Serves `app` on `listener`, which it owns from here on.

    `keep_alive_s` is how long an idle connection is kept. `accept` looks at a new connection's socket and
    says whether to serve it.
    """

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        *,
        keep_alive_s: int,
        accept: Callable[[socket.socket], bool],
    ) -> None:
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
            return _Connection(self._accept, config=self._config, server_state=self._state, app_state={})

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

"""uvicorn's HTTP/1.1 protocol on listening sockets that we bound ourselves.

`uvicorn.Server` is not used: it takes over the signals, wakes ten times a second, and changes the mode
of a Unix socket to 0666. Its protocol, flow control and ASGI cycle are what we want.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class HttpServer:
    """Serves `app` on `sockets`, which it owns from here on.

    `keep_alive_s` is how long an idle connection is kept. `protocol` may add limits of its own.
    """

    def __init__(
        self,
        app: AsgiApp,
        sockets: list[socket.socket],
        *,
        keep_alive_s: float,
        protocol: type[HttpToolsProtocol] = HttpToolsProtocol,
    ) -> None:
        self._sockets = sockets
        self._protocol = protocol
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._config = Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]  # it is only handed to call_later
        )

    async def start(self) -> None:
        """Begin to accept. Connections that queued up since the bind are served now."""
        self._config.load()
        loop = asyncio.get_running_loop()

        def connected() -> asyncio.Protocol:
            return self._protocol(self._config, self._state, {}, loop)

        for sock in self._sockets:
            self._servers.append(await loop.create_server(connected, sock=sock, backlog=self._config.backlog))

    @property
    def open_responses(self) -> int:
        """Requests whose answer is not complete."""
        return len(self._state.tasks)

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    async def stop(self, *, grace_s: float) -> int:
        """Stop accepting, close idle connections, give open answers `grace_s`, then cut the rest.

        Returns how many answers were cut.
        """
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_s)
        cut = list(self._state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=1.0)
        for connection in list(self._state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()
        return len(cut)

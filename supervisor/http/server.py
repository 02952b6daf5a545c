"""The supervisor's HTTP/1.1 server: the public port and the control socket, on sockets bound by ourselves.

Not uvicorn, which serves the workers' private sockets: its protocol has no limits on heads and slow clients,
does not tell a running request of a disconnect when another one is pipelined behind it, loses the body of a
request that offers an upgrade, and its imports would be a third of the supervisor's start.
"""

import asyncio
import socket
from collections.abc import Callable

from supervisor.http.connection import HttpConnection, Registry
from supervisor.http.exchange import Handler
from supervisor.http.reader import Limits

_FAREWELL_S = 1.0
"""What applications that were cut get to clean up after themselves."""


class HttpServer:
    """Has `handler` answer what comes on `sockets`, which it owns from here on.

    `keep_alive_s` is how long an idle connection is kept; `limits` has more. `on_refused` hears path and
    status of a request that is answered without the handler, the path empty when no whole head came.
    """

    def __init__(
        self,
        handler: Handler,
        sockets: list[socket.socket],
        *,
        keep_alive_s: float,
        limits: Limits | None = None,
        on_refused: Callable[[bytes, int], None] = lambda path, status: None,
    ) -> None:
        self._sockets = sockets
        self._registry = Registry(handler, keep_alive_s, limits or Limits(), on_refused)
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Begin to accept. Connections that queued up since the bind are served now."""
        loop = asyncio.get_running_loop()

        def connected() -> asyncio.Protocol:
            return HttpConnection(self._registry)

        for sock in self._sockets:
            self._servers.append(await loop.create_server(connected, sock=sock, backlog=1024))

    @property
    def open_responses(self) -> int:
        """Requests whose answer is not complete."""
        return len(self._registry.open)

    @property
    def connections(self) -> int:
        return len(self._registry.connections)

    async def stop(self, *, grace_s: float) -> int:
        """Stop accepting, close idle connections, give open answers `grace_s`, then cut the rest.

        Returns how many answers were cut.
        """
        for server in self._servers:
            server.close()
        for connection in list(self._registry.connections):
            connection.shutdown()
        await self._registry.rested(grace_s)
        cut = list(self._registry.open)
        tasks = [exchange.task for exchange in cut if exchange.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL_S)
        # Answers that no task works on end with their connections.
        for connection in list(self._registry.connections):
            connection.abort()
        return len(cut)

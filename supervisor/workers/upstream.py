"""A small HTTP/1.1 client over a worker's Unix socket, with connections that are kept and used again."""

import asyncio
from pathlib import Path
from typing import Final

from supervisor.workers.connection import Connection, Headers, UpstreamError, UpstreamResponse

__all__ = ["Upstream", "UpstreamError", "UpstreamResponse"]

IDLE_S: Final = 60.0
"""How long an idle connection is kept. The worker keeps its end for 120 s, so it never closes first."""
MAX_IDLE: Final = 128


class Upstream:
    """The connections to one worker. Belongs to one event loop."""

    def __init__(self, socket: Path, *, idle_s: float = IDLE_S, max_idle: int = MAX_IDLE) -> None:
        self._path = str(socket)
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._closed = False
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        """Those of them that carry nothing now."""
        self._sweep: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, target: bytes, headers: Headers = (), body: bytes = b""
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its answer.

        `target` and `headers` go out as they are; host and content-length are added. Raises UpstreamError.
        """
        connection = self._idle_connection() or await self._connect()
        response = connection.send(method, target, headers, body)
        await response.head()
        return response

    def send(self, method: str, target: bytes, headers: Headers, body: bytes) -> UpstreamResponse | None:
        """As `request`, at once: the head is still to come. None if that takes a new connection."""
        connection = self._idle_connection()
        return None if connection is None else connection.send(method, target, headers, body)

    def close(self) -> None:
        """End every connection; open answers end with UpstreamError. Idempotent."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._connections):
            connection.fail("the worker is being stopped")

    def _idle_connection(self) -> Connection | None:
        # Last in, first out: the ones at the bottom grow old and leave.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh(connection.loop.time() - self._idle_s):
                return connection
            connection.fail("idle for too long, or closed by the worker")
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        self._check_open()
        try:
            _, connection = await loop.create_unix_connection(lambda: Connection(self, loop), self._path)
        except OSError as error:
            raise UpstreamError(
                f"can't connect to the worker: {error.strerror or error}", began=False, connected=False
            ) from error
        self._connections.add(connection)
        try:
            self._check_open()
        except UpstreamError:
            connection.fail("the worker is being stopped")
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise UpstreamError("the worker is being stopped", began=False, connected=False)

    def returned(self, connection: Connection) -> None:
        """Called by a connection whose answer ended in good order."""
        if self._closed or len(self._idle) >= self._max_idle:
            connection.fail("no room for another idle connection")
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(self._idle_s, self._drop_old)

    def dropped(self, connection: Connection) -> None:
        """Called by a connection that is over."""
        self._connections.discard(connection)
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

"""An application that does what it is told, on our HTTP server and real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from supervisor.http.asgi import asgi
from supervisor.http.connected import ClientGone
from supervisor.http.exchange import Exchange
from supervisor.http.reader import Limits
from supervisor.http.server import HttpServer

LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]
"""Values of `anyio_backend` for what has to hold on both event loops."""


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message["body"]
        more = message["more_body"]
    return body


async def reply(send: Any, body: bytes, status: int = 200, headers: Any = None) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers or length})
    await send({"type": "http.response.body", "body": body})


class App:
    """Echoes what it was asked; `/wait` answers when told to, `/stream` streams when told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.calls = 0
        self.gone = 0
        self.sent_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self.entered.set()
        try:
            await self.route(scope["raw_path"], scope, receive, send)
        except ClientGone:
            self.gone += 1
        finally:
            self.left.set()

    async def route(self, path: bytes, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange.of(scope)
        if path == b"/early":
            await reply(send, b"no", 413)
        elif path == b"/raise":
            raise ValueError("a bug")
        elif path == b"/abort":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
            exchange.abort()
        elif path == b"/wait":
            await body_of(receive)
            with exchange.while_connected():
                await self.go.wait()
            await reply(send, b"waited")
        elif path == b"/receive":
            await body_of(receive)
            assert (await receive())["type"] == "http.disconnect"
            raise ClientGone
        elif path == b"/stream":
            await body_of(receive)
            with exchange.while_connected():
                kind = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": 200, "headers": kind})
                await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
                await self.go.wait()
            await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})
        elif path == b"/flood":
            with exchange.while_connected():
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                    self.sent_bytes += 65536
        else:
            body = await body_of(receive)
            seen = {
                "method": scope["method"],
                "path": scope["path"],
                "query": scope["query_string"].decode(),
                "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
                "body": body.decode("latin-1"),
            }
            await reply(send, json.dumps(seen).encode())


@asynccontextmanager
async def serving(
    app: Any = None, limits: Limits | None = None, keep_alive_s: float = 30
) -> AsyncIterator[tuple[Any, tuple[str, int], HttpServer]]:
    app = app or App()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    server = HttpServer(asgi(app), [listener], keep_alive_s=keep_alive_s, limits=limits)
    await server.start()
    try:
        yield app, address, server
    finally:
        await server.stop(grace_s=0.1)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the server announces no event for what is asked here
            await asyncio.sleep(0.005)


async def nobody_left(server: HttpServer) -> None:
    await eventually(lambda: server.connections == 0 and server.open_responses == 0)


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

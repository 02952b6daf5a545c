"""ASGI applications on our server: the few requests that are not forwarded can afford what that costs."""

from collections.abc import Awaitable, Callable
from typing import Any

from supervisor.http.exchange import EXTENSION, Exchange, Handler

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
Scope = dict[str, Any]


def asgi(app: AsgiApp) -> Handler:
    """The application as a server wants it."""

    async def handle(exchange: Exchange) -> None:
        await app(scope_of(exchange), exchange.receive, exchange.send)

    return handle


def scope_of(exchange: Exchange) -> Scope:
    """The request as ASGI describes it. `Exchange.of` finds the exchange in it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": exchange.http_version,
        "method": exchange.method,
        "scheme": "http",
        "path": exchange.path,
        "raw_path": exchange.raw_path,
        "query_string": exchange.query,
        "root_path": "",
        "headers": exchange.headers,
        "server": None,
        "client": exchange.client,
        "extensions": {EXTENSION: exchange},
    }

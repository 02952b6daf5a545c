"""A request's body, read under the cap."""

from collections.abc import Awaitable, Callable
from typing import Any

from shared.envelope import too_large
from supervisor.http.connected import ClientGone
from supervisor.http.exchange import HIGH_WATER_BYTES, Exchange


def body_at_once(exchange: Exchange, *, max_bytes: int) -> bytes | None:
    """The whole body, if it came together with the head. Raises PublicError, 413."""
    body = exchange.whole_body()
    if body is not None and len(body) > max_bytes:
        raise too_large(max_bytes)
    return body


def is_on_its_way(exchange: Exchange, declared: bytes | None, *, max_bytes: int) -> bool:
    """Whether the rest of the body comes by itself and is small enough to be waited for as a whole, as of
    clients that send the head by itself. `declared` is the Content-Length, if there is one."""
    if declared is None or exchange.expects_continue:
        return False
    return int(declared) <= min(HIGH_WATER_BYTES, max_bytes)


async def body_of(exchange: Exchange, declared: bytes | None, *, max_bytes: int) -> bytes:
    """As `read_body`; what came together with the head is there already."""
    body = body_at_once(exchange, max_bytes=max_bytes)
    return await read_body(exchange.receive, declared, max_bytes=max_bytes) if body is None else body


async def read_body(
    receive: Callable[[], Awaitable[Any]], declared: bytes | None, *, max_bytes: int
) -> bytes:
    """The whole body. `declared` is the Content-Length, if there is one.

    Raises PublicError, 413, before reading when more is declared, else at the cap; ClientGone when the
    client leaves in the middle of it.
    """
    if declared is not None and int(declared) > max_bytes:
        raise too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message["body"])
        size += len(pieces[-1])
        if size > max_bytes:
            raise too_large(max_bytes)
        more = message["more_body"]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

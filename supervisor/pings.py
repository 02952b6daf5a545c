"""Signs of life for streams that are silent: a model loads, a request waits, a long prompt is computed.

Proxies and clients take a connection on which nothing comes for dead. A stream of which nothing was sent yet
is begun by its first ping; from then on an error can only be its last event.
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
import orjson

from shared import sse
from supervisor.http.exchange import Exchange
from supervisor.settings import ServerSettings

_EVENT: Final = sse.event(b'{"type":"ping"}', "ping")
_LOOKS: Final = 3
"""Looks at a stream in the time after which it counts as silent: pings come at most a third of it late."""
# Routes whose answers are streams when asked for; by what an event is there that means nothing.
_CHUNKS: Final = {
    b"/v1/chat/completions": ("chatcmpl-ping", "chat.completion.chunk"),
    b"/v1/completions": ("cmpl-ping", "text_completion"),
}
_MESSAGES: Final = b"/v1/messages"
_RESPONSES: Final = b"/v1/responses"


class Ping(msgspec.Struct, frozen=True):
    """What is sent on one stream, and after how many seconds of silence."""

    interval_s: float
    data: bytes


def ping_for(target: bytes, model: str, server: ServerSettings) -> Ping | None:
    """What keeps a stream of the route `target` alive; None where there is none, or by the settings."""
    streams = target in _CHUNKS or target in (_MESSAGES, _RESPONSES)
    if not streams or server.ping_s == float("inf"):
        return None
    kind = server.ping_kind
    if kind == "auto":
        kind = "event" if target == _MESSAGES else "comment"
    if kind == "comment" or target == _RESPONSES:
        # There is no event of responses that means nothing.
        return Ping(server.ping_s, sse.PING)
    if target == _MESSAGES:
        return Ping(server.ping_s, _EVENT)
    name, kind_of_chunk = _CHUNKS[target]
    # As the chunk with the usage: one without choices.
    chunk = {"id": name, "object": kind_of_chunk, "created": int(time.time()), "model": model, "choices": []}
    return Ping(server.ping_s, sse.event(orjson.dumps(chunk)))


class Pings:
    """Keeps one stream alive within its block; without a `ping` it does nothing."""

    def __init__(
        self, exchange: Exchange, ping: Ping | None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """`headers` are those of the answer, beside what every event stream has."""
        self._exchange = exchange
        self._ping = ping
        self._headers = headers
        self._timer: asyncio.TimerHandle | None = None
        self._seen: object = None
        self._silent = 0

    def __enter__(self) -> Self:
        if self._ping is not None:
            self._look_later(self._ping)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self, ping: Ping) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ping.interval_s / _LOOKS, self._look, ping)

    def _look(self, ping: Ping) -> None:
        exchange = self._exchange
        if exchange.gone or exchange.complete:
            return
        # What was written last is another object after every write, so pieces that come cost nothing here.
        if exchange.last_piece is not self._seen:
            self._seen, self._silent = exchange.last_piece, 0
        self._silent += 1
        if self._silent >= _LOOKS:
            if not exchange.started:
                exchange.begin(200, [*sse.HEADERS, *self._headers])
            exchange.ping(ping.data)
            self._seen, self._silent = exchange.last_piece, 0
        self._look_later(ping)

"""The server's end of a WebSocket. Frames are wsproto's matter, the handshake and the limits are ours.

Source: RFC 6455.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token

from shared.errors import PublicError
from supervisor.http.exchange import Exchange

_GOING_AWAY: Final = 1001
_UNSUPPORTED: Final = 1003
_TOO_BIG: Final = 1009
_QUIET_S: Final = 20.0
"""After so long without a word from the client it is asked for one."""
_UNANSWERED: Final = 2
"""Such questions that may be open; then it is gone."""
_KEY_BYTES: Final = 16
_Said = TextMessage | Ping | Pong | CloseConnection


class WebSocket:
    """One connection, accepted. Not for several readers."""

    def __init__(
        self,
        exchange: Exchange,
        fields: Mapping[bytes, bytes],
        headers: Sequence[tuple[bytes, bytes]],
        *,
        max_message_bytes: int,
    ) -> None:
        """Answer the handshake. Raises PublicError, 400 or 426, for one that is none."""
        token = _accept_token(exchange, fields)
        self._bytes = exchange.upgrade(
            [(b"upgrade", b"websocket"), (b"sec-websocket-accept", token), *headers]
        )
        self._frames = Connection(ConnectionType.SERVER)
        self._max_bytes = max_message_bytes
        self._parts: list[str] = []
        self._size = 0
        self._open = True

    async def receive(self) -> str | None:
        """The next message; None when there will be none, for whatever reason."""
        questions = 0
        while True:
            for event in self._frames.events():
                match event:
                    case TextMessage():
                        if (message := await self._gather(event)) is not None:
                            return message
                    case BytesMessage():
                        await self.close(_UNSUPPORTED, "send text")
                    case Ping():
                        await self._send(event.response())
                    case CloseConnection():
                        await self.close(event.code if event.code != 1006 else 1000, "")
            if not self._open:
                return None
            try:
                async with asyncio.timeout(_QUIET_S):
                    data = await self._bytes.receive()
            except TimeoutError:
                questions += 1
                if questions > _UNANSWERED:
                    await self.close(_GOING_AWAY, "no answer")
                    return None
                await self._send(Ping())
                continue
            questions = 0
            if not data:
                await self.close(_GOING_AWAY, "")
                return None
            self._frames.receive_data(data)

    async def send(self, message: bytes) -> None:
        """A message of text. Waits while the client reads too slowly."""
        await self._send(TextMessage(data=message.decode()))

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye and close. Idempotent."""
        if self._open:
            self._open = False
            await self._send(CloseConnection(code=code, reason=reason), closing=True)
            self._bytes.close()

    async def _gather(self, part: TextMessage) -> str | None:
        self._parts.append(part.data)
        self._size += len(part.data.encode())
        if self._size > self._max_bytes:
            await self.close(_TOO_BIG, f"a message may have {self._max_bytes} bytes")
            return None
        if not part.message_finished:
            return None
        message = "".join(self._parts)
        self._parts, self._size = [], 0
        return message

    async def _send(
        self, event: TextMessage | Ping | Pong | CloseConnection, *, closing: bool = False
    ) -> None:
        if not self._open and not closing:
            return
        try:
            data = self._frames.send(event)
        except LocalProtocolError:
            # The client said goodbye in the meantime.
            return
        await self._bytes.send(data)


def _accept_token(exchange: Exchange, fields: Mapping[bytes, bytes]) -> bytes:
    key = fields.get(b"sec-websocket-key", b"")
    try:
        known = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        known = False
    if exchange.http_version != "1.1" or not known:
        raise PublicError(400, "bad_handshake", "This is no handshake of a WebSocket.")
    if fields.get(b"sec-websocket-version") != b"13":
        raise PublicError(
            426,
            "unsupported_version",
            "The version of WebSocket here is 13.",
            headers=((b"sec-websocket-version", b"13"),),
        )
    return generate_accept_token(key)

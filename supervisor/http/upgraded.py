"""What is left of an HTTP connection that speaks another protocol from now on: bytes in both directions."""

import asyncio
from typing import Final

HIGH_WATER_BYTES: Final = 64 * 1024
"""Reading from the client pauses while more than this waits to be taken."""


class Upgraded:
    """Belongs to its connection until the connection is lost, or closed by `close`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.ended = False
        """The client sends no more, or is to be told goodbye."""

    async def receive(self) -> bytes:
        """What has come; nothing means that no more comes."""
        while not self._pieces and not self.ended:
            self._arrived.clear()
            await self._arrived.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting_bytes = 0
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return data

    async def send(self, data: bytes) -> None:
        """Waits while the client reads too slowly; to one that is gone it sends nothing."""
        if not self._transport.is_closing():
            self._transport.write(data)
        await self._writable.wait()

    def close(self) -> None:
        """Close when all that was sent has gone out."""
        self._transport.close()

    # What follows is called by the connection.

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._arrived.set()

    def end(self) -> None:
        self.ended = True
        self._arrived.set()

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

"""A worker for the forwarding benchmark: the contract, and answers that cost next to nothing to make.

A proxy that is measured must be the slowest part on the way, so this one is a bare protocol with prepared
answers. Besides its socket it listens on a TCP port of loopback (`GET /port`), where load generators that
speak no Unix sockets measure it without any proxy.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from shared import __version__
from shared.admin import Drained, Health
from shared.launch import LaunchRecord, parse_line
from shared.sockets import bind_private, unlink_quietly
from shared.status import STATUS_FD_ARGUMENT, Hello, Memory, Ready, Status, Warm, encode_status

CHUNK_BYTES: Final = 150
"""Of one streamed event, the size of a token's chunk in chat completions."""
_ANSWER_BYTES: Final = 250
COMMAND: Final = (sys.executable, "-m", "tests.bench.fake_engine")


class Asked(msgspec.Struct):
    """How many chunks to stream, one each `interval_ms`; none asks for one small answer."""

    chunks: int = 0
    interval_ms: float = 1.0


def _answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
    return head + body


_SMALL: Final = _answer(b'{"object":"chat.completion","x":"' + b"x" * (_ANSWER_BYTES - 35) + b'"}')
_EVENTS: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def event() -> bytes:
    """One event in its HTTP chunk, stamped with the clock that all processes share."""
    body = b"data: %d" % time.monotonic_ns()
    return b"%x\r\n%b\n\n\r\n" % (CHUNK_BYTES, body.ljust(CHUNK_BYTES - 2, b"."))


class Metronome:
    """Beats all streams of one interval at once, as an engine's step does for its rows."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._streams: dict[Connection, int] = {}
        self._next_s = 0.0

    def add(self, connection: "Connection", chunks: int) -> None:
        if not self._streams:
            loop = asyncio.get_running_loop()
            self._next_s = loop.time() + self._interval_s
            loop.call_at(self._next_s, self._beat)
        self._streams[connection] = chunks

    def drop(self, connection: "Connection") -> None:
        self._streams.pop(connection, None)

    def _beat(self) -> None:
        for connection, left in list(self._streams.items()):
            if left:
                connection.transport.write(event())
                self._streams[connection] = left - 1
            else:
                connection.transport.write(b"0\r\n\r\n")
                self.drop(connection)
        if self._streams:
            loop = asyncio.get_running_loop()
            # Not from now on, or each beat's own work would come on top of the interval.
            self._next_s = max(self._next_s + self._interval_s, loop.time())
            loop.call_at(self._next_s, self._beat)


class Connection(asyncio.Protocol):
    """Just enough HTTP: a request is a head, and a body of the length that the head tells."""

    transport: Any

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for metronome in self._engine.metronomes.values():
            metronome.drop(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, rest = self._buffer[:end], self._buffer[end + 4 :]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._serve(head, rest[:length])

    def _serve(self, head: bytes, body: bytes) -> None:
        target = head.split(b" ", 2)[1]
        if target == b"/v1/chat/completions":
            asked = msgspec.json.decode(body, type=Asked)
            if asked.chunks:
                self.transport.write(_EVENTS)
                self._engine.metronome(asked.interval_ms / 1000).add(self, asked.chunks)
            else:
                self.transport.write(_SMALL)
        elif target == b"/port":
            self.transport.write(_answer(b"%d" % self._engine.port))
        elif target == b"/admin/drain":
            self.transport.write(_answer(msgspec.json.encode(Drained(True, 0, 0))))
        else:
            self.transport.write(_answer(msgspec.json.encode(self._engine.health())))


class Engine:
    """The process."""

    def __init__(self, record: LaunchRecord) -> None:
        self.record = record
        self.port = 0
        self.metronomes: dict[float, Metronome] = {}

    def metronome(self, interval_s: float) -> Metronome:
        return self.metronomes.setdefault(interval_s, Metronome(interval_s))

    def health(self) -> Health:
        return Health(
            state="ready",
            model=self.record.model,
            pid=os.getpid(),
            generation=self.record.generation,
            in_flight=0,
            running=0,
            queued=0,
            leases=0,
            steps=0,
            memory=Memory(),
        )

    async def serve(self, status_fd: int) -> None:
        loop = asyncio.get_running_loop()
        path = Path(self.record.socket)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        for sock in (bind_private(path), listener):
            await loop.create_server(lambda: Connection(self), sock=sock)
        _say(
            status_fd,
            Ready(
                socket=self.record.socket,
                model=self.record.model,
                pid=os.getpid(),
                capabilities=("chat",),
                context_window=4096,
                memory=Memory(),
                load_s=0.0,
            ),
        )
        ended = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
        await ended.wait()
        unlink_quietly(path)


def _say(status_fd: int, status: Status) -> None:
    os.write(status_fd, encode_status(status))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(STATUS_FD_ARGUMENT, type=int, required=True)
    status_fd = parser.parse_args().status_fd
    _say(status_fd, Hello(version=__version__, pid=os.getpid()))
    _say(status_fd, Warm(import_s=0.0))
    for line in sys.stdin.buffer:
        told = parse_line(line)
        if isinstance(told, LaunchRecord):
            uvloop.run(Engine(told).serve(status_fd))
            break


if __name__ == "__main__":
    main()

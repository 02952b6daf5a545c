"""What the measurements of faults have in common: a service over fake workers, and streams that never end."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fixtures.fake_shapes import Load
from tests.fixtures.harness import Service, chat_body
from tests.fixtures.models import models_config, write_fake_model

WAIT_S: Final = 60
_ENDLESS: Final = 1_000_000
_INTERVAL_MS: Final = 10
_END: Final = b"0\r\n\r\n"


@contextlib.contextmanager
def service_of(base: Path, config: str = "", **models: Load) -> Iterator[Service]:
    base.mkdir()
    folders = {name: write_fake_model(base / name, load) for name, load in models.items()}
    config += models_config(**folders)
    # The same port each time, so that one that starts anew has to get it.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with Service(base / "home", fake=True, config=config, arguments=("--port", port)) as service:
        yield service


class Stream:
    """A streamed chat on a connection of its own, whose model says a word every few milliseconds."""

    def __init__(self, service: Service, model: str, text: str = "Hello", **fake: Any) -> None:
        fake = {"chunks": _ENDLESS, "interval_ms": _INTERVAL_MS, **fake}
        body = json.dumps(chat_body(model, text, stream=True, fake=fake)).encode()
        self.connection = connected(service)
        self.connection.sendall(head("/v1/chat/completions", len(body)) + body)
        self.heard = b""

    def until(self, what: bytes) -> "Stream":
        while what not in self.heard:
            if not (piece := self.connection.recv(65536)):
                raise RuntimeError(f"it ended with {self.heard[-300:]!r}")
            self.heard += piece
        return self

    def broken_s(self) -> float:
        """When it has ended, by the clock; that must be with an error event."""
        self.heard = self.heard[-100:]
        while not self.heard.endswith(_END) and (piece := self.connection.recv(65536)):
            self.heard = self.heard[-20_000:] + piece
        ended_s = time.perf_counter()
        if b'"error"' not in self.heard or b"[DONE]" in self.heard:
            raise RuntimeError(f"no error: {self.heard[-300:]!r}")
        self.connection.close()
        return ended_s


def connected(service: Service) -> socket.socket:
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def head(path: str, length: int, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n".encode()


def pid_of(service: Service, model: str) -> int:
    worker = service.worker(model)
    if worker is None or worker["pid"] is None:
        raise RuntimeError(f"{model} has no worker")
    return int(worker["pid"])


def load(service: Service, model: str) -> None:
    """By hand, so that its earlier deaths don't count."""
    service.client.post(f"/api/models/{model}/load").raise_for_status()


class Pace:
    """When the pieces of a stream come."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._came_s: list[float] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._stream.connection.recv(65536):
                self._came_s.append(time.perf_counter())

    def longest_ms(self, after_s: float, before_s: float) -> float:
        """The longest silence in between."""
        came = [moment for moment in list(self._came_s) if after_s <= moment <= before_s]
        return 1000 * max(b - a for a, b in zip([after_s, *came], [*came, before_s], strict=True))

    def close(self) -> None:
        self._stream.connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._stream.connection.close()

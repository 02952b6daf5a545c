"""Verbs against supervisors that are there, are not, or misbehave."""

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.errors import PublicError
from shared.sockets import bind_private
from supervisor.cli.client import Client, Held
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.streaming import stream
from supervisor.home import Home
from tests.fixtures.harness import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "h")


def whole_request(connection: socket.socket) -> bytes:
    """One request, body included, however many pieces it comes in: empty if there is none. A connection that
    is closed with something unread is reset, and the answer may be lost with it.
    """
    with connection.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n")) if (first := file.readline()) else b""
        length = re.search(rb"content-length: (\d+)", head.lower())
        return first + head + file.read(int(length[1]) if length else 0)


class Peer:
    """Answers every request with the same bytes, then closes. It keeps what it was sent."""

    def __init__(self, server: socket.socket, answer: bytes | None) -> None:
        self._server = server
        self._answer = answer
        self.requests: list[bytes] = []
        self._release = threading.Event()
        server.setblocking(True)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                connection, _ = self._server.accept()
                with connection:
                    data = whole_request(connection)
                    if not data:
                        return
                    self.requests.append(data)
                    if self._answer is None:
                        self._release.wait(10)
                    else:
                        connection.sendall(self._answer)

    def close(self) -> None:
        self._release.set()
        with socket.socket(self._server.family) as last:
            last.connect(self._server.getsockname())
        self._thread.join(10)
        self._server.close()


@contextlib.contextmanager
def control(home: Home, answer: bytes | None) -> Iterator[Peer]:
    peer = Peer(bind_private(home.control_socket), answer)
    try:
        yield peer
    finally:
        peer.close()
        home.control_socket.unlink()


def http(status: int, body: bytes, *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode() + body


def refused(client: Client, target: str = "/api/status") -> str:
    with pytest.raises(RefusedError) as caught:
        client.get(target)
    return str(caught.value)


def test_no_folder_means_not_running(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError) as caught:
        Client.of(tmp_path / "my home")
    assert str(caught.value) == (
        f"no supervisor runs with {tmp_path}/my home; "
        f"start it with: mlx-supervisor start --home '{tmp_path}/my home'"
    )


def test_the_default_folder_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotRunningError, match=r"mlx-supervisor start$"):
        Client.of(tmp_path / ".mlx-supervisor")


def test_a_folder_open_to_others_is_not_trusted(home: Home) -> None:
    home.path.chmod(0o755)
    with pytest.raises(RefusedError, match="chmod 700"):
        Client.of(home.path)


def test_what_a_power_cut_left_means_not_running(home: Home) -> None:
    home.lock_file.write_text("4711 0.1.0\n")
    bind_private(home.control_socket).close()
    with pytest.raises(NotRunningError):
        Client.of(home.path).get("/api/status")


def test_a_supervisor_that_does_not_listen_yet_is_told_apart(home: Home) -> None:
    lock = home.lock()
    try:
        sentence = refused(Client.of(home.path))
    finally:
        lock.close()
    assert f"(pid {os.getpid()})" in sentence
    assert "does not answer" in sentence
    assert "supervisor.log" in sentence


def test_json_comes_back(home: Home) -> None:
    with control(home, http(200, b'{"pid": 1}')) as peer:
        assert Client.of(home.path).get("/api/status") == {"pid": 1}
    assert peer.requests[0].startswith(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n")


def test_an_answer_without_a_body_is_none(home: Home) -> None:
    with control(home, b"HTTP/1.1 204 No Content\r\n\r\n"):
        assert Client.of(home.path).post("/api/stop") is None


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("qwen3-8b", b"/api/models/qwen3-8b/load"),
        ("org/name", b"/api/models/org/name/load"),
        ("a b?c#d%e\r\nX: y", b"/api/models/a%20b%3Fc%23d%25e%0D%0AX%3A%20y/load"),
        ("ü", b"/api/models/%C3%BC/load"),
    ],
)
def test_no_name_breaks_out_of_its_path(home: Home, model: str, target: bytes) -> None:
    with control(home, http(200, b"{}")) as peer:
        Client.of(home.path).act(model, "load")
    assert peer.requests[0].split(b"\r\n")[0] == b"POST " + target + b" HTTP/1.1"


def test_a_refusal_is_the_supervisors_own_sentence(home: Home) -> None:
    body = PublicError(404, "model_not_found", "there is no model 'x'; did you mean 'y'?").body()
    with control(home, http(404, body)):
        assert refused(Client.of(home.path)) == "there is no model 'x'; did you mean 'y'?"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "no"}', b'{"detail": "x"}'])
def test_an_error_in_another_shape_is_its_status(home: Home, body: bytes) -> None:
    with control(home, http(502, body)):
        assert refused(Client.of(home.path)) == "the supervisor answered with status 502"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", http(200, b"{", length=99)])
def test_a_supervisor_that_ends_in_the_middle_is_told(home: Home, answer: bytes) -> None:
    with control(home, answer):
        assert "ended before it had answered" in refused(Client.of(home.path))


def test_nonsense_instead_of_json_is_told(home: Home) -> None:
    with control(home, http(200, b"<html>")):
        assert "ended before it had answered" in refused(Client.of(home.path))


def test_a_hanging_supervisor_is_not_waited_for_for_ever(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.cli.client.ANSWER_S", 0.2)
    with control(home, None):
        assert "took more than 0.2 s to answer" in refused(Client.of(home.path))


# Streams, from the public port.


@contextlib.contextmanager
def public(answer: bytes) -> Iterator[str]:
    server = socket.create_server(("127.0.0.1", 0))
    peer = Peer(server, answer)
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        peer.close()


def sse(*data: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(b"%x\r\ndata: %b\n\n\r\n" % (len(item) + 8, item) for item in data)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end


def test_events_come_one_by_one() -> None:
    with public(sse(b'{"a": 1}', b"[DONE]")) as url:
        assert list(stream(url, "/v1/chat/completions", {})) == [b'{"a": 1}', b"[DONE]"]


def test_a_stream_that_is_cut_is_an_error_and_no_end() -> None:
    events: list[bytes] = []
    with public(sse(b"1", end=b"")) as url, pytest.raises(RefusedError, match="was lost"):
        for event in stream(url, "/v1/chat/completions", {}):
            events += [event]
    assert events == [b"1"]


def test_a_refused_stream_is_the_servers_own_sentence() -> None:
    body = json.dumps({"error": {"message": "the queue is full"}}).encode()
    with public(http(429, body)) as url, pytest.raises(RefusedError, match=r"^the queue is full$"):
        list(stream(url, "/v1/chat/completions", {}))


def test_nobody_at_the_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RefusedError, match="Connection refused"):
        list(stream(url, "/v1/chat/completions", {}))


def test_what_is_held_can_be_ended_while_another_thread_reads_it(home: Home) -> None:
    """Its reader went on into a connection that was being closed, and the exit code of `run` was lost."""
    server = bind_private(home.control_socket)
    server.setblocking(True)
    read: list[object] = []

    def lines_of(held: Held) -> None:
        try:
            for line in held.lines:
                read.append(line)  # noqa: PERF402  # one by one, as the test waits for the first
        except RefusedError as error:
            read.append(error)

    def lease() -> None:
        connection, _ = server.accept()
        with connection:
            whole_request(connection)
            connection.sendall(http(200, b'{"state": "leased"}\n', length=99))
            assert connection.recv(1) == b"", "the connection is not ended"

    with ThreadPoolExecutor(2) as threads:
        supervisor = threads.submit(lease)
        with Client.of(home.path).hold("/api/lease", {}) as held:
            reading = threads.submit(lines_of, held)
            wait_until(lambda: bool(read), "nothing is read")
            held.end()
            reading.result(10)
        supervisor.result(10)
    server.close()
    assert read[0] == {"state": "leased"}

"""What clients may do to the whole program, with fake workers: leave, stall, send much, be many."""

import contextlib
import hashlib
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.fixtures.facts import facts
from tests.fixtures.harness import Service, chat_body, wait_until
from tests.fixtures.models import models_config, write_fake_model

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("clients")
    config = models_config(a=write_fake_model(base / "a"), b=write_fake_model(base / "b"))
    limits = '[server]\nmax_body = "16MiB"\n[defaults]\nmax_concurrency = 4\nqueue = 4\n'
    with Service(base / "home", fake=True, fresh=True, config=limits + config) as service:
        assert service.chat("a").status_code == 200
        yield service


def ask(service: Service, body: dict[str, Any]) -> socket.socket:
    url = httpx.URL(service.url)
    connection = socket.create_connection((url.host, url.port or 80), timeout=20)
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def leave(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def in_flight(service: Service) -> int:
    worker = service.worker("a")
    return 0 if worker is None else int(worker["in_flight"] + worker["queued"])


PHASES: dict[str, dict[str, Any]] = {
    "prefill, streamed": {"stream": True, "fake": {"first_ms": 30_000}},
    "prefill, not streamed": {"fake": {"first_ms": 30_000}},
    "mid-stream": {"stream": True, "fake": {"chunks": 3000, "interval_ms": 10}},
    "silent mid-stream": {"stream": True, "fake": {"chunks": 9, "wedge_after": 2}},
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_frees_its_row(service: Service, phase: str, how: str) -> None:
    """Fault 25: noticed at once, whatever the request is doing."""
    before = facts(service)
    connection = ask(service, chat_body("a", "hi", **PHASES[phase]))
    wait_until(lambda: facts(service)["started"] > before["started"], "not started")
    if "mid-stream" in phase:
        connection.recv(1000)
    leave(connection, how)
    wait_until(lambda: facts(service)["cancelled"] > before["cancelled"], "still running")
    wait_until(lambda: in_flight(service) == 0, "still counted")


def test_a_client_that_leaves_the_queue_is_never_started(service: Service) -> None:
    """Fault 25 (e). Rows and the worker's own queue are full; the last one waits in the supervisor."""
    before = facts(service)
    long = {"stream": True, "fake": {"first_ms": 30_000}}
    busy = [ask(service, chat_body("a", "hi", **long)) for _ in range(4)]
    wait_until(lambda: facts(service)["started"] - before["started"] == 4, "not started")
    waiting = ask(service, chat_body("a", "hi"))
    wait_until(lambda: in_flight(service) == 5, "not queued")
    leave(waiting, "close")
    wait_until(lambda: in_flight(service) == 4, "still queued")
    for connection in busy:
        leave(connection, "reset")
    wait_until(lambda: in_flight(service) == 0, "still counted")
    assert facts(service)["started"] - before["started"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_whole_answer(service: Service, stream: bool) -> None:
    """Fault 26."""
    behaviour = {"chunks": 20, "interval_ms": 20, "first_ms": 200}
    connection = ask(service, chat_body("a", "hi", stream=stream, fake=behaviour))
    connection.shutdown(socket.SHUT_WR)
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
    assert b"t19" in answer
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}")
    connection.close()


def test_many_that_leave_leak_nothing(service: Service) -> None:
    """Fault 25: descriptors and memory of both processes after a thousand departures."""
    worker = service.worker("a")
    assert worker is not None
    watched = [psutil.Process(service.pid), psutil.Process(worker["pid"])]

    def depart(rounds: int) -> None:
        for number in range(rounds):
            body = chat_body("a", "hi", stream=True, fake={"chunks": 50, "interval_ms": 1})
            connections = [ask(service, body) for _ in range(4)]
            if number % 2:
                time.sleep(0.005)
            for connection in connections:
                leave(connection, "reset" if number % 3 else "close")

    depart(50)
    wait_until(lambda: in_flight(service) == 0, "still counted")
    before = [(process.num_fds(), process.memory_info().rss) for process in watched]
    depart(200)
    wait_until(lambda: in_flight(service) == 0, "still counted")
    for process, (descriptors, memory) in zip(watched, before, strict=True):
        # The few connections between the two that happen to be idle come and go.
        wait_until(lambda: process.num_fds() <= descriptors + 16, "descriptors leaked")  # noqa: B023
        assert process.memory_info().rss < memory + 8 * 2**20


def test_a_big_body_arrives_as_it_was_sent(service: Service) -> None:
    body = json.dumps({**chat_body("a", "hi"), "padding": "ä🙂x" * 1_500_000}, ensure_ascii=False).encode()
    assert 10_000_000 < len(body) < 16 * 2**20
    answer = service.client.post(CHAT, content=body)
    assert answer.status_code == 200
    assert facts(service)["body_sha256"] == hashlib.sha256(body).hexdigest()
    too_big = service.client.post(CHAT, content=b"x" * (16 * 2**20 + 1))
    assert (too_big.status_code, too_big.json()["error"]["code"]) == (413, "body_too_large")


def test_five_thousand_idle_connections(service: Service) -> None:
    """Fault 29: new requests are still quick."""
    wanted = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < wanted + 500:
        pytest.skip("the system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * wanted)), hard))
    url = httpx.URL(service.url)
    with contextlib.ExitStack() as stack:
        for number in range(wanted):
            connection = stack.enter_context(socket.create_connection((url.host, url.port or 80)))
            if number % 10 == 0:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            # Who waits longer than httpx does by itself is told so.
            answer = httpx.post(f"{service.url}{CHAT}", json=chat_body("a", "hi"), verify=False)
            assert answer.status_code == 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_log_has_no_traceback_and_no_text(service: Service) -> None:
    """Last in this file: after all that was done above."""
    log = (service.home / "logs" / "supervisor.log").read_text()
    assert "Traceback" not in log + service.output()
    assert "padding" not in log

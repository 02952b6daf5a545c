"""What breaks, and how soon that is over: the times that are promised, through the whole service.

The workers are fake, so that nothing but the service takes time, except where it is about native code. Goals
are the promises, and a slow machine may miss one: nothing fails here.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil

from shared.status import FailureKind
from tests.bench.fault_tools import WAIT_S, Pace, Stream, connected, head, load, pid_of, service_of
from tests.bench.load import wait_for_quiet
from tests.bench.report import Row, row
from tests.fixtures.fake_shapes import Load
from tests.fixtures.harness import Service, chat_body, wait_until
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model

_IDLE: Final = 5000
_STREAMS: Final = 50
_AROUND_S: Final = 0.5
"""Of a stream beside the one that breaks: so long before and after."""


def measure(*, quick: bool) -> list[Row]:
    rounds = 3 if quick else 5
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        with service_of(folder / "usual", a=Load(), b=Load(), c=Load(fail=FailureKind.MISSING)) as service:
            rows = _killed(service, rounds)
            rows += _left(service, rounds, 200 if quick else 1000)
            rows += _given_up(service)
            rows += _idle_clients(service)
            # They mostly wait.
            with ThreadPoolExecutor(2) as threads:
                slow = threads.submit(_slow_clients, service)
                stopped = threads.submit(_stopped, folder)
                rows += _hung(folder / "watched", 2)
                rows += slow.result()
        return rows + _supervisor_killed(folder, max(2, rounds // 2)) + stopped.result()


def _killed(service: Service, rounds: int) -> list[Row]:
    """kill -9 of a worker while it answers, and before it does."""
    told: list[float] = []
    answered: list[float] = []
    after: list[float] = []
    before: list[float] = []
    retried: list[float] = []
    pace = Pace(Stream(service, "b").until(b"data: "))
    try:
        for _ in range(rounds):
            load(service, "a")
            stream, pid = Stream(service, "a").until(b'"t2 '), pid_of(service, "a")
            time.sleep(_AROUND_S)
            killed_s = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            told.append(stream.broken_s() - killed_s)
            service.chat("a").raise_for_status()
            answered.append(time.perf_counter() - killed_s)
            time.sleep(max(0.0, killed_s + _AROUND_S - time.perf_counter()))
            after.append(pace.longest_ms(killed_s, killed_s + _AROUND_S))
            before.append(pace.longest_ms(killed_s - _AROUND_S, killed_s))
    finally:
        pace.close()
    for _ in range(rounds):
        load(service, "a")
        generation = (service.worker("a") or {})["generation"]
        asked_s = time.perf_counter()
        dying = {"die_before_first_byte": True, "generations": [generation]}
        service.chat("a", fake=dying).raise_for_status()
        retried.append(time.perf_counter() - asked_s)
    return [
        row("kill -9 of a worker: until its client knows", "s", told, goal="< 1 s"),
        row("the same: until the next request is answered", "s", answered),
        row("longest silence of another model's stream, against before", "ms", after, before, goal="~ 1"),
        row("kill -9 before the first byte: until another worker has answered", "s", retried),
    ]


def _left(service: Service, rounds: int, clients: int) -> list[Row]:
    """Clients that leave in the middle of their answers."""
    socket_path = (service.worker("a") or {})["socket"]
    freed: list[float] = []
    for _ in range(rounds):
        stream = Stream(service, "a").until(b'"t2 ')
        before = _cancelled(socket_path)
        left_s = time.perf_counter()
        stream.connection.close()
        while _cancelled(socket_path) == before:
            if time.perf_counter() > left_s + WAIT_S:
                raise RuntimeError("the worker goes on")
        freed.append(1000 * (time.perf_counter() - left_s))
    supervisor = psutil.Process(service.pid)
    at_rest = _descriptors(service, supervisor)

    def leave(number: int) -> None:
        # Every other one before a byte of its answer came.
        stream = Stream(service, "a", first_ms=20 if number % 2 else 0)
        if number % 2 == 0:
            stream.until(b"data: ")
        stream.connection.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(leave, range(clients)))
    left_over = _descriptors(service, supervisor) - at_rest
    return [
        row("a client leaves: until its worker has stopped", "ms", freed, goal="a step (10 ms)"),
        row(f"descriptors left over by {clients:,} that left", "", [left_over], goal="0"),
    ]


def _cancelled(path: str) -> int:
    """How many requests the fake worker says that it has given up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(head("/admin/fake", 0, "GET"))
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            answer += connection.recv(65536)
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["cancelled"])


def _descriptors(service: Service, supervisor: psutil.Process) -> int:
    """Those of the supervisor at rest, but for what it keeps open to be used again."""
    wait_until(lambda: all(not worker["in_flight"] for worker in service.engine()["workers"]), "no rest")
    return supervisor.num_fds() - sum(
        connection.status == psutil.CONN_NONE for connection in supervisor.net_connections("unix")
    )


def _given_up(service: Service) -> list[Row]:
    """What it costs to have a model that can't be loaded."""
    if service.chat("c").status_code != 502:
        raise RuntimeError("the broken model answered")
    supervisor = psutil.Process(service.pid)
    service.client.post("/api/models/b/unload").raise_for_status()
    wait_for_quiet(service)
    before, begun_s = _cpu_s(supervisor), time.perf_counter()
    time.sleep(3)
    percent = 100 * (_cpu_s(supervisor) - before) / (time.perf_counter() - begun_s)
    return [row("CPU of the supervisor beside a model that has failed", "%", [percent], goal="< 1 %")]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _slow_clients(service: Service) -> list[Row]:
    """One that does not end its head, and one that sends a byte of its body now and then."""

    def closed_s(beginning: bytes, more: bytes) -> float:
        with connected(service) as connection:
            connection.sendall(beginning)
            begun_s = time.perf_counter()
            connection.settimeout(0.5)
            while time.perf_counter() < begun_s + WAIT_S:
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(65536):
                        break
                    continue
                with contextlib.suppress(OSError):
                    connection.sendall(more)
            return time.perf_counter() - begun_s

    half_a_head = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
    with ThreadPoolExecutor(2) as threads:
        in_head = threads.submit(closed_s, half_a_head, b"x")
        in_body = threads.submit(closed_s, head("/v1/chat/completions", 10**6) + b"{", b" ")
    return [
        row("a slow head: until it is closed", "s", [in_head.result()], goal="10 s"),
        row("a slow body: until it is closed", "s", [in_body.result()], goal="10 s"),
    ]


def _idle_clients(service: Service) -> list[Row]:
    """Many connections that are kept and not used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(_IDLE, hard - 200 if hard != resource.RLIM_INFINITY else _IDLE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    asked = head("/health", 0, "GET")
    connections: list[socket.socket] = []
    try:
        service.chat("a").raise_for_status()
        alone = [_request_ms(service) for _ in range(50)]
        for _ in range(count):
            connections.append(connected(service))
            connections[-1].sendall(asked)
            connections[-1].recv(65536)
        beside = [_request_ms(service) for _ in range(50)]
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    name = f"a new connection's request beside {count:,} idle ones"
    return [row(name, "ms", [statistics.median(beside)], [statistics.median(alone)], goal="as without them")]


def _request_ms(service: Service) -> float:
    body = json.dumps(chat_body("a", "Hello", fake={"chunks": 1})).encode()
    begun_s = time.perf_counter()
    with connected(service) as connection:
        connection.sendall(head("/v1/chat/completions", len(body)) + body)
        answer = connection.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(answer.decode())
    return 1000 * (time.perf_counter() - begun_s)


def _hung(base: Path, rounds: int) -> list[Row]:
    """Workers that hang, and one that does not leave, against the second that each is given here."""
    config = '[watch]\nsilence = "1s"\nstall = "1s"\nkill_grace = "1s"\n[memory]\nspare = false\n'
    stopped: list[float] = []
    wedged: list[float] = []
    ended: list[float] = []
    with service_of(base, config, a=Load(), deaf=Load(ignore_sigterm=True)) as service:
        for _ in range(rounds):
            load(service, "a")
            stream = Stream(service, "a").until(b'"t2 ')
            begun_s = time.perf_counter()
            os.kill(pid_of(service, "a"), signal.SIGSTOP)
            stopped.append(stream.broken_s() - begun_s)
            load(service, "a")
            stream = Stream(service, "a", wedge_after=3).until(b'"t2 ')
            begun_s = time.perf_counter()
            wedged.append(stream.broken_s() - begun_s)
            load(service, "deaf")
            begun_s = time.perf_counter()
            service.client.post("/api/models/deaf/unload").raise_for_status()
            ended.append(time.perf_counter() - begun_s)
    return [
        row("SIGSTOP of a worker, silence = 1s: until its client knows", "s", stopped, goal="soon after 1 s"),
        row("a worker makes no step, stall = 1s: until its client knows", "s", wedged, goal="soon after 1 s"),
        row("a worker ignores SIGTERM, kill_grace = 1s: until it is gone", "s", ended, goal="soon after 1 s"),
    ]


def _supervisor_killed(folder: Path, rounds: int) -> list[Row]:
    """kill -9 of the supervisor: its workers, and the next one on the same folder and port."""
    gone: list[float] = []
    native: list[float] = []
    again: list[float] = []
    usual: list[float] = []
    with service_of(folder / "killed", a=Load(), b=Load()) as service:
        for _ in range(rounds):
            service.stop()
            usual.append(_start_s(service))
            service.chat("a").raise_for_status()
            service.chat("b").raise_for_status()
            stream = Stream(service, "a").until(b'"t2 ')
            gone.append(_workers_gone_s(service, expected=2))
            again.append(_start_s(service))
            stream.connection.close()
    (folder / "native").mkdir()
    config = models_config(m=starter_model())
    with Service(folder / "native" / "home", config=config, arguments=("--no-spare",)) as real:
        real.chat("m", max_tokens=1).raise_for_status()
        worker = psutil.Process(pid_of(real, "m"))
        before = _cpu_s(worker)
        stream = Stream(real, "m", "one two three " * 1500)
        wait_until(lambda: _cpu_s(worker) > before + 0.5, "the prompt is not computed")
        native.append(_workers_gone_s(real, expected=1))
        stream.connection.close()
        real.start()
    return [
        row("kill -9 of the supervisor: until no worker lives", "s", gone, goal="< 2 s"),
        row("the same of a real worker that computes a prompt", "s", native, goal="< 2 s"),
        row("the same: until the next one serves, against a usual start", "s", again, usual, goal="at once"),
    ]


def _start_s(service: Service) -> float:
    begun_s = time.perf_counter()
    service.start()
    return time.perf_counter() - begun_s


def _workers_gone_s(service: Service, *, expected: int) -> float:
    workers = service.workers()
    if len(workers) < expected:
        raise RuntimeError(f"{len(workers)} workers")
    begun_s = time.perf_counter()
    service.kill()
    while any(_lives(worker) for worker in workers):
        if time.perf_counter() > begun_s + WAIT_S:
            raise RuntimeError("a worker lives on")
        time.sleep(0.005)
    return time.perf_counter() - begun_s


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _stopped(folder: Path) -> list[Row]:
    """SIGTERM with many open streams that would go on for ever; then once more with a second signal."""
    config = f"[defaults]\nmax_concurrency = {_STREAMS}\n"
    whole: list[float] = []
    hurried: list[float] = []
    for taken, hurry in ((whole, False), (hurried, True)):
        with service_of(folder / f"stopped-{hurry}", config, a=Load()) as service:
            streams = [Stream(service, "a") for _ in range(_STREAMS)]
            for stream in streams:
                stream.until(b'"t1 ')
            process = service.process
            if process is None:
                raise RuntimeError("it does not run")
            readers = [threading.Thread(target=_swallow, args=(stream,)) for stream in streams]
            for reader in readers:
                reader.start()
            if hurry:
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
            begun_s = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            if (code := process.wait(WAIT_S)) != 0:
                raise RuntimeError(f"it exited with {code}")
            taken.append(time.perf_counter() - begun_s)
            for reader in readers:
                reader.join()
    name = f"SIGTERM with {_STREAMS} open streams: until all is gone"
    return [
        row(name, "s", whole, goal="< 15 s"),
        row("the same, from a second signal on", "s", hurried, goal="cut short"),
    ]


def _swallow(stream: Stream) -> None:
    with contextlib.suppress(OSError), stream.connection:
        while stream.connection.recv(65536):
            pass

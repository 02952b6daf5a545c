"""The supervisor itself: how soon it answers, what it holds, what it does when there is nothing to do."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from tests.bench.report import Row, row
from tests.fixtures.harness import CLI
from tests.fixtures.models import models_config
from tests.fixtures.nursery import ROOT
from tests.fixtures.tiny import tiny_model

_REQUEST = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


class Start(msgspec.Struct, frozen=True):
    """One start. Memory and idle time are 0 where they were not waited for."""

    listening_s: float
    cpu_s: float
    """What the process had used until its first answer: hardly touched by other work on the machine."""
    early_mb: float = 0.0
    late_mb: float = 0.0
    idle_percent: float = 0.0


def measure(*, quick: bool) -> list[Row]:
    """Starts and stops a supervisor a few times, with a bare Python between them."""
    rounds, idle_s = (3, 3.0) if quick else (8, 15.0)
    floor: list[float] = []
    starts: list[Start] = []
    for number in range(rounds):
        floor.append(_bare_python())
        with tempfile.TemporaryDirectory() as base:
            # Memory and idle time need a wait each; twice is enough for numbers that hardly move.
            starts.append(_one_start(Path(base) / "home", idle_s if number < 2 else 0.0))
    waited = starts[:2]
    return [
        row("start to first answer", "s", [start.listening_s for start in starts], goal="< 0.5 s"),
        row("CPU used until the first answer", "s", [start.cpu_s for start in starts]),
        row("a Python that imports nothing, start to end", "s", floor),
        row("resident, serving", "MB", [start.early_mb for start in waited], goal="< 60 MB"),
        row("resident, after discovery was used", "MB", [start.late_mb for start in waited], goal="< 60 MB"),
        row("CPU when idle", "%", [start.idle_percent for start in waited], goal="0 %"),
    ]


def _bare_python() -> float:
    started = time.perf_counter()
    subprocess.run([CLI[0], "-c", ""], check=True)
    return time.perf_counter() - started


def _one_start(home: Path, idle_s: float) -> Start:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(models_config(tiny=tiny_model()))
    port = _free_port()
    with (home.parent / "output").open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*CLI, "start", "--home", str(home), "--port", str(port)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            while not _answers(port, _REQUEST):
                if process.poll() is not None:
                    raise RuntimeError((home.parent / "output").read_text())
                time.sleep(0.002)
            taken = time.perf_counter() - started
            watched = psutil.Process(process.pid)
            used_s = _cpu_s(watched)
            if not idle_s:
                return Start(taken, used_s)
            early = watched.memory_info().rss / 1e6
            _answers(port, _REQUEST.replace(b"/health", b"/engine"))
            _answers(port, _REQUEST.replace(b"/health", b"/v1/models"))
            _settle(watched)
            before = _cpu_s(watched)
            time.sleep(idle_s)
            idle = 100 * max(0.0, _cpu_s(watched) - before) / idle_s
            return Start(taken, used_s, early, watched.memory_info().rss / 1e6, idle)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _settle(watched: psutil.Process) -> None:
    """Wait until the supervisor and its spare have done what follows a start."""
    deadline = time.monotonic() + 60
    quiet_since = time.monotonic()
    last = 0.0
    while time.monotonic() < deadline and time.monotonic() - quiet_since < 1.5:
        used = sum(_cpu_s(process) for process in (watched, *watched.children(recursive=True)))
        if used > last + 0.02:
            last, quiet_since = used, time.monotonic()
        time.sleep(0.1)


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int, request: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(request)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
    except ConnectionError:
        return False
    return answer.startswith(b"HTTP/1.1 200 ")

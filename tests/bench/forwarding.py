"""The forwarding hop: our front, nginx and nothing at all before one and the same fake engine.

A chunk carries the engine's clock, so a reader knows how long it was on its way; what a proxy adds is that,
less what the way takes without one. CPU is the proxy's process alone. All paths take turns within a round.

    python -m tests.bench.forwarding [--quick]
"""

import argparse
import contextlib
import json
import re
import selectors
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import psutil

from tests.bench.fake_engine import CHUNK_BYTES
from tests.bench.report import Row, print_part, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config, write_fake_model

_STAMP: Final = re.compile(rb"data: (\d+)\.")
_CONCURRENCY: Final = (1, 16, 64)


class Way(NamedTuple):
    """A way to the engine: a port on loopback, and the process of the proxy behind it."""

    name: str
    port: int
    proxy: int | None


class Streams(NamedTuple):
    """`number` streams at once, each of `chunks` chunks, one of each every `interval_ms`."""

    number: int
    chunks: int
    interval_ms: int


class Streamed(NamedTuple):
    """Microseconds on the way at the median, and of the proxy's CPU per chunk."""

    way_us: float
    cpu_us: float


class Requested(NamedTuple):
    """Requests per second, microseconds of the proxy's CPU for each, and how many failed."""

    rate: float
    cpu_us: float
    failed: int


def measure(*, quick: bool) -> list[Row]:
    """A round takes about 30 s, or 6 s when quick."""
    rounds = 1 if quick else 4
    one = Streams(1, 500 if quick else 3000, 1)
    many = Streams(16, 100 if quick else 500, 16)
    wrk_s = 1 if quick else 3
    streamed: dict[tuple[str, Streams], list[Streamed]] = defaultdict(list)
    requested: dict[tuple[str, int], list[Requested]] = defaultdict(list)
    with _ways() as ways:
        for _ in range(rounds):
            for streams in (one, many):
                for way in ways:
                    streamed[way.name, streams].append(_stream(way, streams))
            if shutil.which("wrk"):
                for concurrency in _CONCURRENCY:
                    for way in ways:
                        requested[way.name, concurrency].append(_request(way, concurrency, wrk_s))
    rows = []
    for streams, label in ((one, "1 stream"), (many, "16 streams")):
        direct, ours, nginx = (streamed[name, streams] for name in ("direct", "front", "nginx"))
        added = [
            [max(taken.way_us - plain.way_us, 1.0) for taken, plain in zip(some, direct, strict=False)]
            for some in (ours, nginx)
        ]
        rows += [
            row(f"added p50 per chunk, {label}", "us", *added),
            row(
                f"CPU per chunk, {label}",
                "us",
                [taken.cpu_us for taken in ours],
                [taken.cpu_us for taken in nginx],
                goal="within 2x of nginx",
            ),
        ]
    for concurrency in _CONCURRENCY if requested else ():
        direct_, ours_, nginx_ = (requested[name, concurrency] for name in ("direct", "front", "nginx"))
        label = f"requests, c={concurrency}"
        rows += [
            row(label, "1/s", [r.rate for r in ours_], [r.rate for r in nginx_], goal="within 2x of nginx"),
            row(f"{label}, CPU each", "us", [r.cpu_us for r in ours_], [r.cpu_us for r in nginx_]),
            row(f"{label}, no proxy", "1/s", [r.rate for r in direct_]),
            row(f"{label}, failed", "", [float(r.failed) for r in ours_], goal="0"),
        ]
    return rows


@contextlib.contextmanager
def _ways() -> Iterator[list[Way]]:
    with tempfile.TemporaryDirectory(prefix="mlx") as base, contextlib.ExitStack() as stack:
        folder = Path(base)
        config = models_config(bench=write_fake_model(folder / "bench"))
        # What waits is the load generator's business here, not the queue's.
        limits = "[defaults]\nmax_concurrency = 64\nqueue = 64\n"
        service = stack.enter_context(_Supervisor(folder / "home", config=limits + config))
        service.client.post("/api/models/bench/load").raise_for_status()
        worker = service.worker("bench")
        assert worker is not None
        with httpx.Client(transport=httpx.HTTPTransport(uds=worker["socket"])) as engine:
            direct = int(engine.get("http://engine/port").text)
        ways = [
            Way("direct", direct, None),
            Way("front", httpx.URL(service.url).port or 80, service.pid),
        ]
        if nginx := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"):
            ways.append(stack.enter_context(_nginx(nginx, folder, worker["socket"])))
        yield ways


class _Supervisor(Service):
    def __init__(self, home: Path, *, config: str) -> None:
        super().__init__(home, config=config, arguments=("--no-spare",))
        self._module = "tests.bench.bench_supervisor"


_NGINX: Final = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000; client_body_buffer_size 1m;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    upstream engine {{ server unix:{socket}; keepalive 128; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextlib.contextmanager
def _nginx(program: str, base: Path, engine: str) -> Iterator[Way]:
    """One process without a master, as ours is."""
    folder = base / "nginx"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "conf"
    config.write_text(_NGINX.format(folder=folder, socket=engine, port=port))
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline and process.poll() is None, "nginx did not start"
            time.sleep(0.02)
        yield Way("nginx", port, process.pid)
    finally:
        process.terminate()
        process.wait(10)


def _cpu_ns(pid: int) -> int:
    """What the process has had of a CPU so far. The usual counter is too coarse for a short run."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    times = psutil.Process(pid).cpu_times()
    return int(1e9 * (times.user + times.system))


def _stream(way: Way, streams: Streams) -> Streamed:
    """Read the streams, and take the times of all chunks but those of the start."""
    asked = {"model": "bench", "stream": True, "chunks": streams.chunks, "interval_ms": streams.interval_ms}
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    selector = selectors.DefaultSelector()
    for _ in range(streams.number):
        connection = socket.create_connection(("127.0.0.1", way.port))
        connection.sendall(head.encode() + body)
        selector.register(connection, selectors.EVENT_READ, bytearray())
    ways_ns: list[int] = []
    skipped = streams.number * streams.chunks // 10
    before_ns = 0
    left = streams.number
    while left:
        ready = selector.select(10)
        assert ready, f"{left} of {streams.number} streams by {way.name} said nothing for 10 s"
        for key, _ in ready:
            data = key.fileobj.recv(65536)  # type: ignore[union-attr]  # they are sockets
            assert data, f"a stream by {way.name} broke off after {bytes(key.data[-200:])!r}"
            now_ns = time.monotonic_ns()
            buffer: bytearray = key.data
            buffer += data
            ways_ns += [now_ns - int(stamp) for stamp in _STAMP.findall(buffer)]
            if buffer.endswith(b"\r\n0\r\n\r\n"):
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                left -= 1
            del buffer[: max(0, len(buffer) - CHUNK_BYTES // 8)]
            if not before_ns and way.proxy and len(ways_ns) >= skipped:
                before_ns, skipped = _cpu_ns(way.proxy), len(ways_ns)
    expected = streams.number * streams.chunks
    assert len(ways_ns) == expected, f"{len(ways_ns)} chunks of {expected} came by {way.name}"
    cpu_ns = _cpu_ns(way.proxy) - before_ns if way.proxy else 0
    measured = ways_ns[skipped:]
    return Streamed(statistics.median(measured) / 1e3, cpu_ns / 1e3 / len(measured))


_LUA: Final = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model": "bench", "messages": [{"role": "user", "content": "hello"}]}'
wrk.path = "/v1/chat/completions"
"""


def _request(way: Way, concurrency: int, seconds: int) -> Requested:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA)
        script.flush()
        command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "-s", script.name]
        before_ns = _cpu_ns(way.proxy) if way.proxy else 0
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{way.port}"], capture_output=True, text=True, check=True
        )
        cpu_ns = _cpu_ns(way.proxy) - before_ns if way.proxy else 0
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    total = re.search(r"(\d+) requests in", done.stdout)
    assert rate is not None and total is not None, done.stdout
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", done.stdout)
    failed = int(bad[1]) if bad else 0
    failed += sum(map(int, errors.groups())) if errors else 0
    return Requested(float(rate[1]), cpu_ns / 1e3 / max(int(total[1]), 1), failed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    print_part("forwarding", measure(quick=parser.parse_args().quick))


if __name__ == "__main__":
    main()

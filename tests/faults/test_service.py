"""Faults of `the whole program`, as a client and the OS see them, with fake workers that misbehave.

Every test ends with the shared check of `Service`: no process, no socket file and no traceback is left.
"""

import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fixtures.fake_shapes import Death, Load
from tests.fixtures.harness import Service, chat_body, events, wait_until
from tests.fixtures.models import models_config, write_fake_model

Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a supervisor over fake models `a`, `b` and `c`; keyword arguments say how each loads."""
    with contextlib.ExitStack() as stack:

        def begin(*, config: str = "", spare: bool = False, wait: bool = True, **loads: Load) -> Service:
            folders = {
                name: write_fake_model(tmp_path / "models" / name, loads.get(name))
                for name in ("a", "b", "c")
            }
            service = Service(
                tmp_path / "home",
                fake=True,
                config=config + models_config(**folders),
                arguments=() if spare else ("--no-spare",),
            )
            return stack.enter_context(service) if wait else service

        yield begin


def worker_pid(service: Service, model: str) -> int:
    worker = service.worker(model)
    assert worker is not None
    return int(worker["pid"])


def test_kill_9_mid_stream_is_an_error_event_and_never_a_clean_end(start: Start, tmp_path: Path) -> None:
    """1. The other model's stream goes on, the worker comes back, the next request waits for it."""
    service = start()
    assert service.chat("b").status_code == 200
    slow, end = {"chunks": 400, "interval_ms": 5}, tmp_path / "end"
    with service.stream("b", fake={"until": str(end)}) as other, service.stream("a", fake=slow) as stream:
        next(stream), next(stream)
        killed_at = time.monotonic()
        os.kill(worker_pid(service, "a"), signal.SIGKILL)
        seen = list(stream)
        assert time.monotonic() - killed_at < 10
        assert seen[-1]["error"]["code"] == "engine_unavailable"  # type: ignore[index]
        assert "[DONE]" not in seen
        answer = service.chat("a")
        assert answer.status_code == 200
        end.touch()
        *_, last = other
        assert last == "[DONE]"
    assert service.worker("a")["restarts"] == 1  # type: ignore[index]
    assert service.worker("a")["last_exit"]["signal"] == "SIGKILL"  # type: ignore[index]


def test_kill_9_before_the_first_byte_is_retried_once(start: Start) -> None:
    """2. Seen by nobody: the respawned worker answers."""
    service = start()
    answer = service.chat("a", fake={"die_before_first_byte": True, "generations": [1]})
    assert answer.status_code == 200
    assert service.worker("a")["generation"] == 2  # type: ignore[index]


def test_a_request_that_its_worker_gives_back_is_asked_again(start: Start) -> None:
    """Seen by nobody, and no reason to think that the worker is broken."""
    service = start()
    assert service.chat("a", fake={"hand_back": 3}).status_code == 200
    assert service.worker("a")["generation"] == 1  # type: ignore[index]
    assert service.worker("a")["restarts"] == 0  # type: ignore[index]
    with service.stream("a", fake={"hand_back": 5}) as stream:
        *_, last = stream
    assert last == "[DONE]"


def test_a_request_that_kills_every_worker_is_502_with_the_last_log_line(start: Start) -> None:
    """2. One retry, not more: the same request must not kill a third worker."""
    service = start(a=Load(stderr=("something is odd in layer 7",)))
    answer = service.chat("a", fake={"die_before_first_byte": True})
    assert answer.status_code == 502
    error = answer.json()["error"]
    assert error["code"] == "engine_unavailable"
    assert "something is odd in layer 7" in error["message"] and "SIGKILL" in error["message"]
    assert service.chat("b").status_code == 200


def test_kill_9_of_the_supervisor_leaves_no_worker(start: Start) -> None:
    """3. A new one starts at once on the same state folder."""
    service = start(spare=True)
    service.chat("a"), service.chat("b")
    assert len(service.workers()) >= 2
    service.kill()
    wait_until(lambda: not service.workers(), "a worker outlived its supervisor")
    service.start()
    assert service.chat("a").status_code == 200


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_by_its_silence(start: Start) -> None:
    """4. SIGSTOP: SIGTERM can't work on it; it is killed, its streams get an error, it comes back."""
    service = start(config='[watch]\nsilence = "1s"\n')
    with service.stream("a", fake={"chunks": 1000, "interval_ms": 10}) as stream:
        next(stream)
        os.kill(worker_pid(service, "a"), signal.SIGSTOP)
        assert list(stream)[-1]["error"]["code"] == "engine_unavailable"  # type: ignore[index]
    assert service.chat("a").status_code == 200


@pytest.mark.slow
def test_a_wedged_engine_is_noticed_though_its_event_loop_lives(start: Start) -> None:
    """5. Rows are active and no step is made."""
    service = start(config='[watch]\nstall = "1s"\n')
    with service.stream("a", fake={"chunks": 9, "wedge_after": 2, "generations": [1]}) as stream:
        assert list(stream)[-1]["error"]["code"] == "engine_unavailable"  # type: ignore[index]
    assert service.chat("a").status_code == 200


@pytest.mark.slow
def test_a_worker_that_dies_at_load_ends_failed_with_its_last_words(start: Start) -> None:
    """6. Bounded attempts; afterwards the supervisor idles and the other model is unaffected."""
    service = start(a=Load(die_at_load=Death(exit=1), stderr=("no such layer: lm_head",)))
    answer = service.chat("a")
    assert answer.status_code == 502
    assert "no such layer: lm_head" in answer.json()["error"]["message"]
    assert service.worker("a")["state"] == "failed"  # type: ignore[index]
    assert service.chat("b").status_code == 200
    process = psutil.Process(service.pid)
    process.cpu_percent()
    time.sleep(2)  # a measuring time, not a wait
    assert process.cpu_percent() < 5
    # By hand it may be tried again, and the reason is told to the one who asks.
    done = service.cli("load", "a")
    assert done.returncode == 1 and "no such layer" in done.stderr + done.stdout


@pytest.mark.slow
def test_a_grandchild_that_holds_stdout_does_not_hang_the_stop(start: Start) -> None:
    """7. It goes, too."""
    service = start(a=Load(fork_grandchild=True))
    service.chat("a")
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 15


def test_sigterm_gives_open_streams_their_time_and_refuses_new_requests(start: Start, tmp_path: Path) -> None:
    """8. 50 open streams that end in time are whole; new requests get 503."""
    service = start(config="[defaults]\nmax_concurrency = 64\n")
    service.chat("a")
    with ThreadPoolExecutor(51) as threads:

        def whole() -> bool:
            with service.stream("a", fake={"until": str(tmp_path / "end")}) as stream:
                return list(stream)[-1] == "[DONE]"

        streams = [threads.submit(whole) for _ in range(50)]
        wait_until(lambda: service.worker("a")["in_flight"] == 50, "50 streams")  # type: ignore[index]
        os.kill(service.pid, signal.SIGTERM)
        wait_until(lambda: service.chat("a").status_code == 503, "new requests are refused")
        (tmp_path / "end").touch()
        assert all(stream.result() for stream in streams)
    assert service.stop() == 0


def test_streams_that_do_not_end_are_cut_with_an_error_within_the_stop_time(start: Start) -> None:
    """8. An endless stream can't hold the stop beyond its time, and its end is not a clean one."""
    service = start(config='[watch]\ndrain = "1s"\n')
    with service.stream("a", fake={"chunks": 100_000, "interval_ms": 10}) as stream:
        next(stream)
        began = time.monotonic()
        os.kill(service.pid, signal.SIGTERM)
        assert list(stream)[-1]["error"]["code"] == "engine_unavailable"  # type: ignore[index]
    assert service.stop() == 0
    assert time.monotonic() - began < 15


def test_a_second_signal_cuts_short(start: Start) -> None:
    """8."""
    service = start()
    with service.stream("a", fake={"chunks": 100_000, "interval_ms": 10}) as stream:
        next(stream)
        os.kill(service.pid, signal.SIGTERM)
        wait_until(lambda: service.chat("a").status_code == 503, "stopping")
        began = time.monotonic()
        os.kill(service.pid, signal.SIGINT)
        with contextlib.suppress(httpx.HTTPError):
            list(stream)
    assert service.stop() == 0
    assert time.monotonic() - began < 10


def test_signals_until_the_very_end_are_no_death_by_signal(start: Start) -> None:
    """8. Whoever is told to stop, and told again and again, has stopped in good order."""
    service = start()
    process = service.process
    assert process is not None
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.0005)
    assert service.stop() == 0


def test_sigterm_during_a_load(start: Start) -> None:
    """8."""
    service = start(a=Load(never_ready=True))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(service.chat, "a")
        wait_until(lambda: service.worker("a") is not None, "the load begins")
        os.kill(service.pid, signal.SIGTERM)
        assert waiting.result().status_code == 503
    assert service.stop() == 0


@pytest.mark.slow
def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    """9."""
    service = start(a=Load(ignore_sigterm=True), config='[watch]\nkill_grace = "1s"\n')
    service.chat("a")
    assert service.cli("unload", "a").returncode == 0
    assert service.worker("a") is None
    service.chat("a")
    assert service.stop() == 0


def test_two_supervisors_on_one_state_folder(start: Start, tmp_path: Path) -> None:
    """11. The second exits 1, names the holder's pid and touches nothing."""
    service = start()
    service.chat("a")
    second = Service(tmp_path / "home", fake=True, config=(tmp_path / "home/config.toml").read_text())
    second.log = tmp_path / "second.out"
    with pytest.raises(AssertionError, match=rf"exited 1: .*{service.pid}"):
        second.start()
    assert service.chat("a").status_code == 200


def test_a_taken_port_is_refused_before_anything_is_loaded(start: Start, tmp_path: Path) -> None:
    """12."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = start(wait=False)
        service.arguments += ["--port", str(port)]
        with pytest.raises(AssertionError, match=rf"exited 1: .*port {port} .*pid {os.getpid()}"):
            service.start()
        assert not service.workers()


def test_leftovers_of_a_power_cut_are_no_obstacle(start: Start) -> None:
    """13. Stale sockets and lock: start works. A regular file at a socket's path is never removed."""
    service = start(wait=False)
    run = service.home / "run"
    run.mkdir(mode=0o700)
    for name in ("control.sock", "w-1.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(run / name))
    (run / "lock").write_text("12345 0.0.1\n")
    (run / "w-2.sock").write_text("precious")
    with service:
        assert service.chat("a").status_code == 200
        assert service.chat("b").status_code == 200
        assert (run / "w-2.sock").read_text() == "precious"


def test_a_state_folder_with_a_long_path(tmp_path: Path) -> None:
    """14. A short folder is chosen for the sockets; never a cut-off bind."""
    home = tmp_path / ("long" * 20) / "home"
    folder = write_fake_model(tmp_path / "models" / "a")
    with Service(home, fake=True, config=models_config(a=folder), arguments=("--port", "0")) as service:
        assert service.chat("a").status_code == 200
        path = Path(service.worker("a")["socket"])  # type: ignore[index]
        assert len(os.fsencode(path)) <= 103
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


@pytest.mark.parametrize("clients", [pytest.param(2, marks=pytest.mark.slow), 50])
def test_first_requests_at_the_same_instant_share_one_spawn(start: Start, clients: int) -> None:
    """19."""
    service = start(a=Load(load_s=0.3))
    with ThreadPoolExecutor(clients) as threads:
        answers = list(threads.map(lambda _: service.chat("a").status_code, range(clients)))
    assert answers == [200] * clients
    worker = service.worker("a")
    assert worker is not None and (worker["generation"], worker["restarts"]) == (1, 0)


def test_a_request_during_the_unload_gets_an_answer(start: Start) -> None:
    """20. A fresh worker or the old one; never an error, never a hang."""
    service = start(spare=True)
    stop = threading.Event()

    def unload() -> None:
        while not stop.is_set():
            service.client.post("/api/models/a/unload")

    with ThreadPoolExecutor(5) as threads:
        unloading = threads.submit(unload)
        try:
            answers = list(threads.map(lambda _: service.chat("a").status_code, range(20)))
        finally:
            stop.set()
        unloading.result()
    assert answers == [200] * 20


@pytest.mark.slow
def test_alternating_models_with_room_for_one(start: Start) -> None:
    """21. 100 requests by four clients in turn: all answered, never two residents."""
    service = start(config='[defaults]\nexclusive = true\nhold = "0s"\n')
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.05):
            most = max(most, sum(worker["pid"] is not None for worker in service.engine()["workers"]))

    with ThreadPoolExecutor(5) as threads:
        watching = threads.submit(watch)
        try:
            names = ["a", "b"] * 50
            answers = list(threads.map(lambda name: service.chat(name).status_code, names))
        finally:
            done.set()
        watching.result()
    assert answers == [200] * 100
    assert most == 1


def test_the_client_that_caused_a_load_goes_away(start: Start) -> None:
    """22. The load is kept for whoever else waits; never a second one, never a leaked process."""
    service = start(a=Load(load_s=1.0))
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/v1/chat/completions", json=chat_body("a", "x"), timeout=0.3)
        answer = threads.submit(service.chat, "a").result()
    assert answer.status_code == 200
    assert service.worker("a")["generation"] == 1  # type: ignore[index]


@pytest.mark.slow
def test_clients_that_go_away_leave_nothing_behind(start: Start) -> None:
    """25. In the queue, before the head, mid-stream, and without streaming: the row is freed each time."""
    service = start()
    service.chat("a")
    process = psutil.Process(service.pid)

    def leave(fields: dict[str, object]) -> None:
        body = chat_body("a", "x", **fields)
        with (
            contextlib.suppress(httpx.TimeoutException),
            httpx.Client(timeout=0.05, verify=False) as client,
            client.stream("POST", f"{service.url}/v1/chat/completions", json=body) as response,
        ):
            next(events(response))

    slow = {"chunks": 10_000, "interval_ms": 20}
    kinds: list[dict[str, object]] = [
        {"fake": {"first_ms": 60_000}},
        {"stream": True, "fake": {"first_ms": 60_000}},
        {"stream": True, "fake": slow},
        {"fake": slow},
    ]
    leave(kinds[0])
    before = process.num_fds()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: leave(kinds[number % 4]), range(200)))
    wait_until(lambda: service.worker("a")["in_flight"] == 0, "rows are held")  # type: ignore[index]
    wait_until(lambda: process.num_fds() <= before + 2, "descriptors leaked")
    assert service.chat("a").status_code == 200
    assert service.worker("a")["restarts"] == 0  # type: ignore[index]


def test_admin_routes_do_not_exist_on_the_public_port(start: Start) -> None:
    """37. By any spelling; forwarded-path headers change nothing."""
    service = start()
    service.chat("a")
    host = service.url.removeprefix("http://")
    targets = [
        "/admin/lease",
        "//admin/lease",
        "/%61dmin/lease",
        "/admin%2flease",
        "/v1/../admin/lease",
        "/v1/%2e%2e/admin/lease",
        "/ADMIN/lease",
        "/admin/lease/",
        f"http://{host}/admin/lease",
        "/admin/health",
        "/admin/memory",
    ]
    for target in targets:
        for method in ("GET", "POST"):
            with socket.create_connection(tuple(host.split(":")), timeout=5) as raw:  # type: ignore[arg-type]
                head = (
                    f"{method} {target} HTTP/1.1\r\nhost: {host}\r\nx-original-url: /admin/lease\r\n"
                    "x-forwarded-prefix: /admin\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
                raw.sendall(head.encode())
                answer = b"".join(iter(lambda: raw.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 404 "), (method, target, answer[:80])
    assert service.worker("a")["leases"] == 0  # type: ignore[index]

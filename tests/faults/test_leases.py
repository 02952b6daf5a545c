"""Leases of the whole machine: through the pool, and through `mlx-supervisor run` of a running program."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from supervisor.cli.client import Client
from supervisor.home import Home
from supervisor.settings import ModelSettings
from tests.fixtures import nursery
from tests.fixtures.fake_shapes import Behaviour, Load
from tests.fixtures.harness import Service, chat_body, wait_until
from tests.fixtures.models import models_config, write_fake_model
from tests.fixtures.pools import running


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


async def test_a_lease_waits_for_what_runs_and_requests_wait_for_its_end(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        a, b = bench.model("a"), bench.model("b")
        await bench.pool.load(b)
        slow = asyncio.ensure_future(bench.chat(a, Behaviour(chunks=6, interval_ms=40)))
        await bench.said("worker.ready", "a")
        async with bench.pool.lease("a test", unload=False) as lease:
            later = asyncio.ensure_future(bench.chat(b))
            async with asyncio.timeout(20):
                await lease.granted
            assert slow.done() and (await slow).generation == 1
            assert {worker.state for worker in bench.pool.engine().workers} == {"leased"}
            (seen,) = bench.pool.engine().leases
            assert (seen.holder, seen.granted) == ("a test", True)
            assert {waits.reason for waits in bench.pool.engine().waiting} == {"lease"}
            await asyncio.sleep(0.1)
            assert not later.done()
        assert (await later).generation == 1
        assert [kind for kind in bench.kinds() if kind.startswith("lease.")] == [
            "lease.asked",
            "lease.granted",
            "lease.ended",
        ]


async def test_a_worker_that_is_killed_during_a_lease_is_leased_again_before_it_serves(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.chat(entry)
        async with bench.pool.lease("a test", unload=False) as lease:
            await lease.granted
            worker = bench.worker("a")
            assert worker is not None and worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            await bench.said("worker.ready", "a", count=2)
            await bench.said("worker.leased", "a", count=2)
            later = asyncio.ensure_future(bench.chat(entry))
            await asyncio.sleep(0.1)
            assert not later.done()
        assert (await later).generation == 2


async def test_a_lease_without_models_brings_back_those_that_are_always_there(tmp_path: Path) -> None:
    always = ModelSettings(source=str(write_fake_model(tmp_path / "p")), pin=True, preload=True)
    async with running(tmp_path, models={"p": always}) as bench:
        await bench.said("worker.ready", "p")
        await bench.chat(bench.model("a"))
        async with bench.pool.lease("a test", unload=True) as lease:
            await lease.granted
            assert not bench.pool.engine().workers
        await bench.said("worker.ready", "p", count=2)
        assert bench.pool.state_of("a") is None


async def test_a_load_under_way_is_leased_when_it_is_done(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(load_s=0.3))
        first = asyncio.ensure_future(bench.chat(entry))
        await bench.said("worker.starting", "a")
        async with bench.pool.lease("a test", unload=False) as lease:
            await lease.granted
            assert bench.pool.state_of("a") == "leased"
            assert not first.done()
        assert (await first).generation == 1


async def test_the_end_of_the_pool_ends_a_lease(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.chat(bench.model("a"))
        async with bench.pool.lease("a test", unload=False) as lease:
            await lease.granted
            await bench.pool.stop(grace_s=1.0)
            assert lease.given_back.done()


# The program.


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("leases")
    config = models_config(a=write_fake_model(folder / "a", Load()))
    with Service(folder / "home", fake=True, config=config, arguments=("--no-spare",)) as running:
        running.chat("a")
        yield running


def run(
    service: Service, *arguments: str, stdin: int = subprocess.DEVNULL, new_session: bool = False
) -> nursery.Program:
    return nursery.launch(
        "supervisor",
        ["run", "--home", str(service.home), *arguments],
        stdin=stdin,
        new_session=new_session,
    )


def leases(service: Service) -> list[dict[str, object]]:
    found: list[dict[str, object]] = service.engine()["leases"]
    return found


SAYS_AND_WAITS = "import sys; print('begun', flush=True); sys.stdin.readline(); sys.exit(3)"


def test_a_command_runs_alone_and_its_exit_code_is_ours(service: Service) -> None:
    process = run(service, "--", sys.executable, "-c", SAYS_AND_WAITS, stdin=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "begun\n"
    (command,) = _children(process.pid)
    wait_until(lambda: leases(service)[0]["pid"] == command, "the command is not told")
    (lease,) = leases(service)
    assert lease["granted"] and str(lease["holder"]).endswith(f"(pid {command})")
    assert service.worker("a")["state"] == "leased"  # type: ignore[index]
    told = service.cli("ps").stdout
    assert f"(pid {command}) has the machine" in told
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(service.chat, "a")
        wait_until(lambda: bool(service.engine()["waiting"]), "nobody waits")
        assert "for a waits for the end of the lease" in service.cli("ps").stdout
        assert not waiting.done()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(10) == 3
        assert waiting.result().status_code == 200
    process.communicate()
    assert not leases(service)


def test_the_death_of_the_holder_gives_the_machine_back(service: Service) -> None:
    """kill -9 of all of it leaves nobody to say goodbye; the connection ends, and that is enough."""
    process = run(service, "--unload", "--", "sleep", "60", new_session=True)
    command_of(service, process)
    assert service.worker("a") is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert service.chat("a").status_code == 200
    assert not leases(service)


def test_a_command_that_outlives_its_run_keeps_the_machine(service: Service) -> None:
    """Its memory is in use as long as it lives: models that came back beside it would not find theirs."""
    process = run(service, "--", "sleep", "60")
    command = command_of(service, process)
    process.kill()
    process.wait(10)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(service.chat, "a")
        wait_until(lambda: bool(service.engine()["waiting"]), "nobody waits")
        assert psutil.pid_exists(command) and leases(service)[0]["granted"] and not waiting.done()
        # It was `run` that was named as the holder, which was gone.
        assert f"sleep (pid {command}) has the machine" in service.cli("ps").stdout
        os.kill(command, signal.SIGKILL)
        assert waiting.result().status_code == 200
    process.communicate()
    assert not leases(service)


def test_a_command_may_run_another_with_the_machine_that_it_has(service: Service) -> None:
    """A script that leases the machine was itself run with it, and waited for its own end for ever."""
    inner = [sys.executable, "-m", "supervisor", "run", "--home", str(service.home)]
    process = run(service, "--", *inner, "--timeout", "5", "--", "sh", "-c", "echo begun; exit 4")
    code, said, told = process.communicate(timeout=30)
    assert (code, said) == (4, "begun\n") and "has the machine" not in told
    assert service.chat("a").status_code == 200
    # It can't be had without the models, which the outer one left loaded.
    process = run(service, "--", *inner, "--unload", "--", "true")
    code, _, told = process.communicate(timeout=30)
    assert code == 1 and "give --unload to that run" in told


def test_a_command_that_has_the_machine_does_not_wait_for_its_own_end(service: Service) -> None:
    """It loaded a model, and waited for ever: models rest until the command ends."""
    for verb in (["load", "a"], ["chat", "a", "-p", "hello"]):
        inner = [sys.executable, "-m", "supervisor", *verb, "--home", str(service.home)]
        process = run(service, "--", *inner)
        code, said, told = process.communicate(timeout=30)
        assert (code, said) == (1, "") and "it would wait for its own end" in told


def test_who_leaves_before_a_load_has_begun_does_not_want_it_any_more(service: Service) -> None:
    """A load of which nobody hears stood in the queue, and came when the lease had ended."""
    service.client.post("/api/models/a/unload").raise_for_status()
    outer = run(service, "--", "sleep", "60")
    command_of(service, outer)
    loading = nursery.launch("supervisor", ["load", "a", "--home", str(service.home)])
    assert loading.stderr is not None
    told = loading.stderr.readline()
    assert re.fullmatch(
        r"1 request for a waits for the end of the lease, since [^:]*: sleep \(pid \d+\) has the machine.*\n",
        told,
    )
    assert service.engine()["waiting"]
    loading.send_signal(signal.SIGINT)
    assert loading.communicate(timeout=20)[1] == ""
    wait_until(lambda: not service.engine()["waiting"], "somebody waits")
    outer.terminate()
    outer.communicate(timeout=20)
    assert service.worker("a") is None


def test_a_model_is_unloaded_by_hand_while_somebody_has_the_machine(service: Service) -> None:
    """It waited for the end of the lease."""
    assert service.chat("a").status_code == 200
    outer = run(service, "--", "sleep", "60")
    command_of(service, outer)
    service.client.post("/api/models/a/unload", timeout=20).raise_for_status()
    assert service.worker("a") is None and leases(service)[0]["granted"]
    outer.terminate()
    outer.communicate(timeout=20)


def test_an_option_that_run_does_not_know_is_not_its_command(service: Service) -> None:
    code, _, told = run(service, "--unlod", "--", "true").communicate(timeout=20)
    assert code == 2 and "Invalid value for --unlod: no such option" in told


def test_the_token_of_a_lease_that_is_over_counts_for_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the name and pid of the holder: both come again, and anybody can write them down."""
    process = run(service, "--", "printenv", "MLX_SUPERVISOR_LEASE")
    token = process.communicate(timeout=20)[1].strip()
    assert len(token) == 48
    monkeypatch.setenv("MLX_SUPERVISOR_LEASE", token)
    outer = run(service, "--", "sleep", "60")
    command = command_of(service, outer)
    for told in (token, f"sleep (pid {outer.pid})", f"sleep (pid {command})", ""):
        monkeypatch.setenv("MLX_SUPERVISOR_LEASE", told)
        inner = run(service, "--timeout", "0.1", "--", "echo", "begun")
        code, said, complaint = inner.communicate(timeout=20)
        assert (code, said) == (1, ""), "it took the machine of another for its own"
        assert f"sleep (pid {command}) has the machine" in complaint
    outer.terminate()
    assert outer.communicate(timeout=20)[0] == 128 + signal.SIGTERM


def test_the_token_is_told_to_the_holder_alone_and_good_for_as_long_as_it_holds(service: Service) -> None:
    def own(body: object) -> tuple[int, dict[str, object]]:
        answer = service.client.post("/api/lease/own", json=body)
        return answer.status_code, answer.json()

    with service.client.stream("POST", "/api/lease", json={"holder": "a program"}) as response:
        lines = (json.loads(line) for line in response.iter_lines())
        held = next(line for line in lines if line["state"] == "leased")
        token = held["token"]
        assert token not in service.client.get("/engine").text
        status, found = own({"token": token})
        assert (status, found["holder"], found["granted"], found["pid"]) == (200, "a program", True, None)
        assert own({"token": token[:-1] + "x"})[1]["error"]["code"] == "lease_not_found"  # type: ignore[index]
        status, body = own({"token": token, "command_pid": os.getpid()})
        assert status == 400 and "on the control socket only" in body["error"]["message"]  # type: ignore[index]
    wait_until(lambda: not leases(service), "still leased")
    assert own({"token": token})[0] == 404
    assert own({})[1]["error"]["param"] == "token"  # type: ignore[index]
    assert own({})[0] == own({"token": 1})[0] == own({"token": "x", "command_pid": 0})[0] == 400


def test_what_a_command_leaves_behind_keeps_nothing_without_its_run_either(
    service: Service, tmp_path: Path
) -> None:
    """With `run` killed nobody is left to end the connection, which a daemon of the command has too."""
    left = tmp_path / "left"
    process = run(service, "--", "sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo $! > {left}; wait")
    wait_until(lambda: left.exists() and left.read_text().endswith("\n"), "not begun")
    (command,) = _children(process.pid)
    wait_until(lambda: leases(service)[0]["pid"] == command, "the command is not told")
    daemon = psutil.Process(int(left.read_text()))
    try:
        process.kill()
        process.wait(10)
        assert leases(service)[0]["pid"] == command
        os.kill(command, signal.SIGKILL)
        wait_until(lambda: not leases(service), "still leased")
        assert daemon.is_running()
    finally:
        daemon.kill()
    process.communicate()


def test_a_lease_that_only_a_child_of_its_holder_has_says_so(service: Service) -> None:
    """A program of one's own, which left the connection to another process."""
    script = """if True:
        import os, socket, sys, time
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(sys.argv[1])
        connection.sendall(b"POST /api/lease HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n")
        told = b""
        while b"leased" not in told:
            told = connection.recv(65536)
        print(told.partition(b'"token":"')[2][:48].decode())
        if child := os.fork():
            print(child, flush=True)
            sys.stdin.readline()
            os._exit(0)
        time.sleep(60)
    """
    control = str(Home.find(service.home).control_socket)
    program = subprocess.Popen(
        [sys.executable, "-c", script, control], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None and program.stdout is not None
    token, child = program.stdout.readline().strip(), int(program.stdout.readline())
    try:
        # Not of a process that is none of his.
        body = {"token": token, "command_pid": os.getpid()}
        assert Client.of(service.home).post("/api/lease/own", body)["pid"] == program.pid
        (lease,) = leases(service)
        assert (lease["holder"], lease["pid"]) == (f"somebody (pid {program.pid})", program.pid)
        program.stdin.close()
        program.wait(20)  # not for the end of its output, which the child has too
        (lease,) = leases(service)
        assert lease["pid"] is None
        told = f"somebody (pid {program.pid}, which has ended, but not what it started) has the machine"
        assert told in service.cli("ps").stdout
    finally:
        os.kill(child, signal.SIGKILL)
        program.stdout.close()
    wait_until(lambda: not leases(service), "still leased")


def test_what_a_command_leaves_behind_keeps_nothing(service: Service, tmp_path: Path) -> None:
    """A daemon that it started inherits its descriptors; the lease ends with the command all the same."""
    left = tmp_path / "left"
    process = run(service, "--", "sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo $! > {left}")
    assert process.communicate(timeout=20)[0] == 0
    daemon = psutil.Process(int(left.read_text()))
    try:
        wait_until(lambda: not leases(service), "still leased")
        assert daemon.is_running()
    finally:
        daemon.kill()


def command_of(service: Service, process: nursery.Program) -> int:
    """The pid of what runs under it, once the machine is leased for that."""
    wait_until(lambda: bool(leases(service)) and bool(leases(service)[0]["granted"]), "no lease")
    wait_until(lambda: bool(_children(process.pid)), "no command")
    (command,) = _children(process.pid)
    # Until then it is a copy of `run` with all of its connections.
    wait_until(lambda: psutil.Process(command).name() == "sleep", "not begun")
    return command


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_a_signal_reaches_the_command(service: Service) -> None:
    process = run(service, "--", "sleep", "60")
    command_of(service, process)
    process.terminate()
    code, _, _ = process.communicate(timeout=20)
    assert code == 128 + signal.SIGTERM


def test_a_command_that_is_not_there_is_told_before_anybody_waits(service: Service) -> None:
    process = run(service, "--", "no-such-command-at-all")
    code, _, told = process.communicate(timeout=20)
    assert code == 127
    assert told == "mlx-supervisor: no-such-command-at-all: no such command\n"
    assert not leases(service)


def test_a_machine_that_is_not_free_in_time_is_refused(service: Service) -> None:
    body = chat_body("a", "x", stream=True, fake={"chunks": 2000, "interval_ms": 50})
    with service.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        process = run(service, "--timeout", "0.3", "--", "true")
        code, _, told = process.communicate(timeout=20)
    assert code == 1
    assert "the machine could not be leased: it was not free within 0.3 s: 1 request running" in told
    wait_until(lambda: not leases(service), "still there")


def test_a_program_leases_the_machine_by_http_for_as_long_as_it_is_connected(service: Service) -> None:
    with service.client.stream("POST", "/api/lease", json={"holder": "a program"}) as response:
        states = []
        for line in response.iter_lines():
            states.append(json.loads(line)["state"])
            if states[-1] == "leased":
                break
        assert states == ["waiting", "leased"] or states == ["leased"]
        assert leases(service)[0]["holder"] == "a program"
    wait_until(lambda: not leases(service), "still leased")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"holder": ""}, "'holder' must have 1 to 200 characters."),
        ({"unload": "yes"}, "Expected `bool`, got `str`."),
        ({"timeout_s": -1}, "'timeout_s' must be a number of seconds, 0 or more."),
        ({"for": "me"}, "Object contains unknown field `for`."),
    ],
)
def test_a_wrong_lease_is_refused(service: Service, body: dict[str, object], message: str) -> None:
    response = service.client.post("/api/lease", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.slow
def test_a_stream_that_waits_for_a_lease_is_pinged(service: Service) -> None:
    """Slowly: the first ping comes after a quarter of a minute, as the program has it."""
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    released = threading.Event()

    def hold() -> None:
        with service.client.stream("POST", "/api/lease", json={}) as response:
            lines = response.iter_lines()  # its end would be the connection's
            while json.loads(next(lines))["state"] != "leased":
                pass
            released.wait(40)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        wait_until(lambda: bool(leases(service)) and bool(leases(service)[0]["granted"]), "no lease")
        body = json.dumps(chat_body("a", "x", stream=True)).encode()
        with socket.create_connection((host, int(port)), timeout=40) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            answer = b""
            while b": ping" not in answer:
                piece = connection.recv(65536)
                assert piece, answer
                answer += piece
            released.set()
            while piece := connection.recv(65536):
                answer += piece
    finally:
        released.set()
        holder.join()
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"200 OK" in head and b"text/event-stream" in head
    assert rest.index(b": ping") < rest.index(b'"delta"') and b"[DONE]" in rest

"""The life of a worker's process, as its supervisor sees it."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared import __version__
from shared.launch import LaunchRecord
from shared.status import ExitCode, Failed, FailureKind, Hello, Ready, Warm
from tests.e2e.worker.process import ROOT, within, worker_process
from tests.e2e.worker.serving import ENDLESS, chat_body


def chunks(lines: Any) -> list[Any]:
    """Events of a stream, decoded."""
    data = [line.removeprefix("data: ") for line in lines if line]
    return [event if event == "[DONE]" else json.loads(event) for event in data]


def test_a_life() -> None:
    """From the spare to SIGTERM, in one process because each start costs seconds."""
    with worker_process() as worker:
        hello = worker.next()
        assert hello == Hello(version=__version__, pid=worker.process.pid)
        warm = worker.next()
        assert isinstance(warm, Warm) and warm.import_s > 0

        # A spare: imports done, record unread. It says nothing more, does nothing and holds no socket.
        cpu_s = _cpu_s(worker.process.pid)
        assert not select.select([worker._status], [], [], 0.5)[0]
        assert worker.process.poll() is None
        assert _cpu_s(worker.process.pid) - cpu_s < 0.1
        assert not worker.socket.exists()

        worker.launch(worker.record().line())
        ready = worker.settled()
        assert isinstance(ready, Ready)
        assert (ready.socket, ready.model, ready.pid) == (str(worker.socket), "tiny", worker.process.pid)
        assert (ready.capabilities, ready.context_window) == (("chat",), 2048)
        assert ready.memory.weights_bytes > 0
        assert worker.has_private_socket()

        with worker.client() as client:
            # Ctrl-C reaches the whole group; the worker leaves the decision to its supervisor.
            worker.process.send_signal(signal.SIGINT)
            assert client.post("/v1/chat/completions", json=chat_body()).status_code == 200

            # Stopped and continued, as a debugger or a laptop's lid does.
            body = chat_body(stream=True, max_tokens=200)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                worker.process.send_signal(signal.SIGSTOP)
                threading.Timer(1.0, worker.process.send_signal, (signal.SIGCONT,)).start()
                assert list(lines)[-2] == "data: [DONE]"

            # SIGTERM: no new requests, what runs gets a moment, then an error of its own.
            body = chat_body(stream=True, max_tokens=ENDLESS)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                worker.process.send_signal(signal.SIGTERM)
                rest = chunks(lines)
            assert rest[-1] == "[DONE]" or rest[-1]["error"]["code"] == "stopping"
        assert worker.exit(5) == ExitCode.OK


def _cpu_s(pid: int) -> float:
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_the_end_of_the_supervisor_ends_a_worker_in_native_code() -> None:
    """Fault 3: the engine is inside a call of minutes; the lifeline's thread must not wait for it."""
    with worker_process("tests.e2e.worker.sabotaged") as worker:
        worker.serve()
        with worker.client() as client:
            steps = client.get("/admin/health").json()["steps"]
            asking = threading.Thread(target=_ask, args=(worker, "!long"))
            asking.start()
            while client.get("/admin/health").json()["running"] == 0:
                time.sleep(0.01)
            time.sleep(0.3)
            assert client.get("/admin/health").json()["steps"] == steps, "the loop lives beside the engine"
            with within(2.0):
                worker.stdin.close()
                assert worker.exit(5) == ExitCode.OK
            asking.join(5)
        assert not worker.socket.exists()


def _ask(worker: Any, text: str) -> None:
    with worker.client() as client:
        try:
            client.post("/v1/chat/completions", json=chat_body(text))
        except Exception as error:  # the connection ends with the process
            assert "disconnected" in str(error) or "reset" in str(error).lower(), error


def test_a_dead_engine_takes_the_process_with_it_and_tells_its_clients() -> None:
    """No zombie that answers health while nobody computes (seen in servers with an engine thread)."""
    with worker_process("tests.e2e.worker.sabotaged") as worker:
        worker.serve()
        with worker.client() as client:
            body = chat_body(stream=True, max_tokens=ENDLESS)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                whole = client.post("/v1/chat/completions", json=chat_body("!die"))
                with within(2.0):
                    rest = chunks(lines)
        assert rest[-1]["error"]["code"] == "engine_unavailable"
        assert "[DONE]" not in rest
        assert (whole.status_code, whole.json()["error"]["code"]) == (502, "engine_unavailable")
        assert worker.exit(5) == ExitCode.ENGINE
        assert "the engine died" in worker.log()[-1]


def test_a_model_that_can_not_be_loaded_is_told_in_a_message_and_a_last_line(tmp_path: Path) -> None:
    with worker_process() as worker:
        worker.launch(worker.record(tmp_path).line())
        failed = worker.settled()
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.MISSING
        assert worker.exit(5) == ExitCode.FAILED
        assert failed.message in worker.log()[-1]


def test_sigterm_and_the_end_of_the_pipe_end_a_spare() -> None:
    for end in ("terminate", "close"):
        with worker_process() as worker:
            assert isinstance(worker.next(), Hello)
            with within(3.0):
                if end == "close":
                    worker.stdin.close()
                else:
                    worker.process.terminate()
                assert worker.exit(5) == ExitCode.OK


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not a record\n", "not valid"),
        (b'{"protocol": "0.0.1"}\n', "0.0.1"),
        (b"x" * (2**20 + 70_000), "too long"),
    ],
)
def test_an_unusable_record_ends_with_2_and_a_clear_line(line: bytes, words: str) -> None:
    with worker_process() as worker:
        assert isinstance(worker.next(), Hello)
        try:
            worker.launch(line)
        except BrokenPipeError:
            assert len(line) > 2**20
        assert worker.exit(5) == ExitCode.USAGE
        assert words in worker.log()[-1]


def test_a_record_of_another_version_names_both() -> None:
    with worker_process() as worker:
        record = msgspec.structs.replace(worker.record(), protocol="9.9.9")
        assert isinstance(record, LaunchRecord)
        worker.launch(record.line())
        assert worker.exit(5) == ExitCode.USAGE
        assert __version__ in worker.log()[-1] and "9.9.9" in worker.log()[-1]


@pytest.mark.parametrize("arguments", [[], ["--status-fd"], ["--status-fd", "x"], ["--other", "3"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ,
        timeout=20,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("usage:")

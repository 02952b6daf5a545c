"""The life of a worker's process, as its supervisor sees it."""

import contextlib
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

import psutil
import pytest

from shared.status import ExitCode, Failed, FailureKind, Hello, Warm
from tests.e2e.worker.process import ROOT, within, worker_process
from tests.e2e.worker.serving import ENDLESS, chat_body


def chunks(lines: Any) -> list[Any]:
    """Events of a stream, decoded."""
    data = [line.removeprefix("data: ") for line in lines if line]
    return [event if event == "[DONE]" else json.loads(event) for event in data]


@pytest.mark.slow
def test_a_spare_costs_nothing_and_a_worker_survives_being_stopped_and_ends_gracefully() -> None:
    """One process for several questions, because each start costs seconds."""
    with worker_process() as worker:
        assert isinstance(worker.next(), Hello)
        warm = worker.next()
        assert isinstance(warm, Warm) and warm.import_s > 0
        cpu_s = _cpu_s(worker.process.pid)
        assert not select.select([worker.status], [], [], 0.5)[0]
        assert _cpu_s(worker.process.pid) - cpu_s < 0.1

        worker.serve()
        with worker.client() as client:
            # Stopped and continued, as a debugger or a laptop's lid does.
            body = chat_body(stream=True, max_tokens=200)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                worker.process.send_signal(signal.SIGSTOP)
                threading.Timer(1.0, worker.process.send_signal, (signal.SIGCONT,)).start()
                assert list(lines)[-2] == "data: [DONE]"

            # SIGTERM: what runs gets a moment, then an error of its own.
            body = chat_body(stream=True, max_tokens=ENDLESS)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                worker.process.send_signal(signal.SIGTERM)
                rest = chunks(lines)
            assert rest[-1] == "[DONE]" or rest[-1]["error"]["code"] == "stopping"
        assert worker.exit(20) == ExitCode.OK
        assert not worker.socket.exists()


def _cpu_s(pid: int) -> float:
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
            with within(10):
                worker.stdin.close()
                assert worker.exit(20) == ExitCode.OK
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
                with within(10):
                    rest = chunks(lines)
        assert rest[-1]["error"]["code"] == "engine_unavailable"
        assert "[DONE]" not in rest
        assert (whole.status_code, whole.json()["error"]["code"]) == (502, "engine_unavailable")
        assert worker.exit(20) == ExitCode.ENGINE
        assert "the engine died" in worker.log()[-1]


def test_a_model_that_can_not_be_loaded_is_told_in_a_message_and_a_last_line(tmp_path: Path) -> None:
    with worker_process() as worker:
        worker.launch(worker.record(tmp_path).line())
        failed = worker.settled()
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.MISSING
        assert worker.exit(20) == ExitCode.FAILED
        assert failed.message in worker.log()[-1]


def test_a_record_without_an_end_ends_with_2() -> None:
    with worker_process() as worker:
        with contextlib.suppress(BrokenPipeError):
            worker.launch(b"x" * (2**20 + 70_000))
        assert worker.exit(20) == ExitCode.USAGE
        assert "too long" in worker.log()[-1]


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

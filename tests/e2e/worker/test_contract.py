"""The contract between supervisor and worker, asked of the real worker and of the fake one alike.

What holds here is what the supervisor's tests with fake workers may rely on.
"""

import json
import select
import signal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from shared import __version__
from shared.admin import Drained, Health, Leased, Limited, Trimmed
from shared.launch import LaunchRecord, Preview
from shared.status import ExitCode, Failed, FailureKind, Hello, Memory, Ready, Warm
from tests.e2e.worker.process import WorkerProcess, within, worker_process
from tests.fixtures.models import write_fake_model
from tests.fixtures.tiny import tiny_model

REAL, FAKE = "worker", "tests.fixtures.fake_worker"
both = pytest.mark.parametrize("module", [FAKE, REAL], ids=["fake", "real"])

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def folder_for(module: str, tmp_path: Path) -> Path:
    return tiny_model() if module == REAL else write_fake_model(tmp_path / "fake")


def check_chat(client: httpx.Client) -> None:
    whole = client.post("/v1/chat/completions", json=CHAT).json()
    assert (whole["object"], whole["model"]) == ("chat.completion", "tiny")
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["usage"]["total_tokens"] > 0

    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    chunks: list[dict[str, Any]] = [json.loads(event) for event in data[:-1]]
    assert data[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 3

    error = client.post("/v1/chat/completions", content=b"{")
    assert (error.status_code, set(error.json()["error"])) == (400, {"message", "type", "param", "code"})
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert client.get("/nonesuch").status_code == 404


def check_admin(worker: WorkerProcess, client: httpx.Client) -> None:
    health = msgspec.json.decode(client.get("/admin/health").content, type=Health)
    assert (health.state, health.model, health.generation) == ("ready", "tiny", 1)
    assert (health.pid, health.in_flight) == (worker.process.pid, 0)
    msgspec.json.decode(client.get("/admin/memory").content, type=Memory)
    msgspec.json.decode(client.post("/admin/memory/trim").content, type=Trimmed)
    limited = client.post("/admin/memory/limit", json={"bytes": 2**30})
    msgspec.json.decode(limited.content, type=Limited)

    with worker.client() as holder, holder.stream("POST", "/admin/lease") as lease:
        lines = lease.iter_lines()  # httpx closes the response with its iterator
        msgspec.json.decode(next(lines), type=Leased)
        health = msgspec.json.decode(client.get("/admin/health").content, type=Health)
        assert (health.state, health.leases) == ("leased", 1)
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200

    drained = msgspec.json.decode(client.post("/admin/drain").content, type=Drained)
    assert (drained.drained, drained.in_flight) == (True, 0)
    refused = client.post("/v1/chat/completions", json=CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in refused.headers


@both
def test_a_life(module: str, tmp_path: Path) -> None:
    with worker_process(module) as worker:
        assert worker.next() == Hello(version=__version__, pid=worker.process.pid)
        assert isinstance(worker.next(), Warm)
        # A spare waits in silence, and a Ctrl-C, which reaches the whole group, is not for it.
        worker.process.send_signal(signal.SIGINT)
        assert not select.select([worker.status], [], [], 0.2)[0]
        assert not worker.socket.exists()

        worker.launch(worker.record(folder_for(module, tmp_path)).line())
        ready = worker.settled()
        assert isinstance(ready, Ready)
        assert (ready.socket, ready.model, ready.pid) == (str(worker.socket), "tiny", worker.process.pid)
        assert ready.capabilities[0] == "chat" and ready.context_window > 0
        assert worker.has_private_socket()
        worker.process.send_signal(signal.SIGINT)
        with worker.client() as client:
            check_chat(client)
            check_admin(worker, client)
        with within(10):
            worker.stdin.close()
            assert worker.exit(20) == ExitCode.OK
        assert not worker.socket.exists()


@both
@pytest.mark.parametrize("end", ["terminate", "close"])
def test_the_end_of_a_spare(module: str, end: str) -> None:
    with worker_process(module) as worker:
        assert isinstance(worker.next(), Hello)
        with within(10):
            if end == "close":
                worker.stdin.close()
            else:
                worker.process.terminate()
            assert worker.exit(20) == ExitCode.OK


@both
def test_a_spare_that_was_told_what_is_likely_loads_what_its_record_names(
    module: str, tmp_path: Path
) -> None:
    with worker_process(module) as worker:
        folder = folder_for(module, tmp_path)
        # All of it may come at once, before the imports are done.
        previews = Preview(str(tmp_path / "gone")).line() + Preview(str(folder)).line()
        worker.launch(previews + worker.record(folder).line())
        assert isinstance(worker.settled(), Ready)
        worker.process.terminate()
        assert worker.exit(20) == ExitCode.OK


@both
def test_an_unusable_record_ends_with_2_and_a_clear_line(module: str) -> None:
    with worker_process(module) as worker:
        assert isinstance(worker.next(), Hello)
        worker.launch(b"not a record\n")
        assert worker.exit(20) == ExitCode.USAGE
        assert "not valid" in worker.log()[-1]


@both
def test_a_record_of_another_version_ends_with_2_and_names_both(module: str) -> None:
    with worker_process(module) as worker:
        record: LaunchRecord = msgspec.structs.replace(worker.record(), protocol="9.9.9")
        worker.launch(record.line())
        assert worker.exit(20) == ExitCode.USAGE
        assert __version__ in worker.log()[-1] and "9.9.9" in worker.log()[-1]


@both
def test_a_taken_socket_fails_the_load_and_is_left_alone(module: str, tmp_path: Path) -> None:
    """Fault 13. A regular file at the socket's path is somebody's."""
    with worker_process(module) as worker:
        worker.socket.write_text("precious")
        worker.launch(worker.record(folder_for(module, tmp_path)).line())
        failed = worker.settled()
        assert isinstance(failed, Failed) and failed.kind is FailureKind.SOCKET
        assert worker.exit(20) == ExitCode.FAILED
        assert worker.socket.read_text() == "precious"

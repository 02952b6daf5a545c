"""A model on two ranks on this machine: the same answers, and all of it lives and dies together."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from shared.launch import Host, Options, Shards
from shared.status import ExitCode, Failed, FailureKind, Ready
from tests.e2e.worker.process import WorkerProcess, worker_process
from tests.e2e.worker.serving import chat_body
from tests.fixtures.tiny import Tiny, tiny_model

pytestmark = pytest.mark.slow

HERE = Host("127.0.0.1", ("127.0.0.1",))
TWO = Shards((HERE, HERE))


def launch(worker: WorkerProcess, directory: Path | None = None, **options: Any) -> None:
    import msgspec

    record = msgspec.structs.replace(
        worker.record(directory), options=Options(**{"shards": TWO, "max_concurrency": 4, **options})
    )
    worker.launch(record.line())


@contextlib.contextmanager
def sharded(tiny: Tiny, **options: Any) -> Iterator[WorkerProcess]:
    with worker_process() as worker:
        launch(worker, tiny_model(tiny), **options)
        status = worker.settled()
        assert isinstance(status, Ready), (status, worker.log())
        yield worker
        worker.process.send_signal(signal.SIGTERM)
        assert worker.exit(10) == ExitCode.OK


@contextlib.contextmanager
def plain(tiny: Tiny) -> Iterator[WorkerProcess]:
    with worker_process() as worker:
        launch(worker, tiny_model(tiny), shards=None)
        assert isinstance(worker.settled(), Ready)
        yield worker
        worker.process.send_signal(signal.SIGTERM)
        worker.exit(10)


def other_rank(worker: WorkerProcess) -> psutil.Process:
    (child,) = psutil.Process(worker.process.pid).children()
    return child


def answers(client: httpx.Client, requests: list[dict[str, Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(requests)) as threads:
        bodies = list(
            threads.map(
                lambda fields: client.post("/v1/chat/completions", json=chat_body(**fields)).json(), requests
            )
        )
    for body in bodies:
        assert "choices" in body, body
    return [(body["choices"], body["usage"]["completion_tokens"]) for body in bodies]


REQUESTS: list[dict[str, Any]] = [
    {"text": "Hello", "max_tokens": 40},
    {"text": "What else is there to say? " * 12, "max_tokens": 30},
    {"text": "Hello", "max_tokens": 25, "temperature": 1.0, "seed": 5, "n": 2},
    {"text": "Once", "max_tokens": 20, "repetition_penalty": 1.4, "stop": ["q"]},
    {"text": "Write JSON", "max_tokens": 20, "response_format": {"type": "json_object"}},
    {"text": "Hello again and again and again", "max_tokens": 33},
]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_two_ranks_say_what_one_says(architecture: Any) -> None:
    tiny = Tiny(architecture=architecture)
    with plain(tiny) as one, one.client() as client:
        expected = [answers(client, [request])[0] for request in REQUESTS]
    with sharded(tiny) as two, two.client() as client:
        assert [answers(client, [request])[0] for request in REQUESTS] == expected
        # All at once, which is more than run at a time, and once more, from the prompt cache.
        assert answers(client, REQUESTS) == expected
        assert answers(client, REQUESTS[::-1]) == expected[::-1]
        memory = client.get("/admin/memory").json()
        freed = client.post("/admin/memory/trim", json={}).json()
        assert freed["freed_bytes"] > 0
        assert answers(client, REQUESTS) == expected
        stats = client.get("/admin/cache").json()
        assert stats["hits"] > 0
        # Its share of the machine changes: what is kept does on both.
        client.post("/admin/memory/limit", json={"bytes": 2**28}).raise_for_status()
        assert answers(client, REQUESTS) == expected
        assert client.get("/admin/cache").json()["limit_bytes"] < stats["limit_bytes"]
        other_rank(two)
    with plain(tiny) as one, one.client() as client:
        assert memory["weights_bytes"] < 0.8 * client.get("/admin/memory").json()["weights_bytes"]


def test_a_cancelled_stream_leaves_both_in_step() -> None:
    with sharded(Tiny()) as worker, worker.client() as client:
        expected = answers(client, REQUESTS[:2])
        for _ in range(3):
            body = chat_body("Hello", stream=True, max_tokens=5000)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                for _ in range(4):
                    next(lines)
        assert answers(client, REQUESTS[:2]) == expected


def test_what_one_machine_alone_can_do_is_refused() -> None:
    with sharded(Tiny()) as worker, worker.client() as client:
        asked = {
            "/v1/systemone": {
                "state": "It rains.",
                "questions": {"wet": {"type": "noul", "instructions": "Wet?"}},
            },
            "/v1/completions": {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": 1},
            "/admin/adapters": {"action": "mount", "name": "a", "path": "/nowhere"},
        }
        for path, body in asked.items():
            refused = client.post(path, json=body)
            assert refused.status_code == 501, (path, refused.text)
            assert "several machines" in refused.text
        answers(client, REQUESTS[:1])


def test_kill_9_of_the_other_rank_ends_the_worker() -> None:
    with worker_process() as worker:
        launch(worker)
        assert isinstance(worker.settled(), Ready)
        other_rank(worker).kill()
        assert worker.exit(10) == ExitCode.ENGINE
        assert any("rank 1 on 127.0.0.1 ended (signal 9)" in line for line in worker.log())


def test_kill_9_of_rank_0_ends_the_other_even_in_the_middle_of_a_step() -> None:
    with worker_process() as worker:
        launch(worker)
        assert isinstance(worker.settled(), Ready)
        other = other_rank(worker)
        body = chat_body("Hello", stream=True, max_tokens=5000)
        with (
            worker.client() as client,
            pytest.raises(httpx.HTTPError),
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            for number, _ in enumerate(response.iter_lines()):
                if number == 5:
                    os.kill(worker.process.pid, signal.SIGKILL)
        assert worker.exit(5) == -signal.SIGKILL
        # Its supervisor would have.
        worker.socket.unlink()
        with contextlib.suppress(psutil.NoSuchProcess):
            other.wait(5)


def test_a_rank_that_can_not_load_is_a_failed_load(tmp_path: Path) -> None:
    with worker_process() as worker:
        launch(worker, tmp_path / "nothing")
        failed = worker.settled()
        assert isinstance(failed, Failed)
        # Whichever rank says so first: of no other kind, or it would be tried again and again.
        assert "no model in" in failed.message and failed.kind is FailureKind.MISSING
        assert worker.exit(10) == ExitCode.FAILED


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"draft": str(tiny_model())}, "can't have a draft"),
        ({"shards": Shards((HERE, HERE, HERE))}, "can't be divided among 3 machines"),
    ],
)
def test_what_can_not_be_spread_fails_the_load(options: dict[str, Any], reason: str) -> None:
    with worker_process() as worker:
        launch(worker, **options)
        failed = worker.settled()
        assert isinstance(failed, Failed)
        assert reason in failed.message and failed.kind is FailureKind.UNSUPPORTED
        assert worker.exit(10) == ExitCode.FAILED

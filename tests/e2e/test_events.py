"""`GET /events` and `GET /metrics` of the running program, with fake workers behind it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.harness import Service
from tests.fixtures.models import models_config, write_fake_model


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    config = models_config(a=write_fake_model(tmp_path / "models" / "a"))
    with Service(tmp_path / "home", fake=True, config=config) as service:
        yield service


def frames(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Name and data of each event, until the stream ends."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_watcher_sees_what_is_there_then_what_happens_then_the_end(service: Service) -> None:
    service.chat("a").raise_for_status()
    with (
        httpx.Client(timeout=20, verify=False) as client,
        client.stream("GET", f"{service.url}/events") as response,
        ThreadPoolExecutor(1) as threads,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = frames(response)
        name, snapshot = next(stream)
        assert name == "snapshot"
        assert [worker["id"] for worker in snapshot["engine"]["workers"]] == ["a"]
        assert snapshot["downloads"] == {"downloads": []}
        service.client.post("/api/models/a/unload").raise_for_status()
        seen: dict[str, Any] = {}
        while "worker.gone" not in seen:
            name, data = next(stream)
            seen[name] = data
        assert seen["worker.gone"]["model"] == "a" and seen["worker.gone"]["level"] == "info"
        stopping = threads.submit(service.cli, "stop")
        rest = [name for name, _ in stream]
        assert "supervisor.stopping" in rest and rest[-1] == "workers.gone", "it ended in good order"
        assert stopping.result().returncode == 0


def test_events_are_read_only(service: Service) -> None:
    answer = service.client.post("/events")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")

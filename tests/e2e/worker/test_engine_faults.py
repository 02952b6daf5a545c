"""Steps that fail, loads that fail or take their time, connections of strangers."""

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from shared.sockets import is_own_peer
from shared.status import ExitCode, Failed, FailureKind, Progress, Ready
from tests.e2e.worker.serving import ENDLESS, serving
from worker.app import App
from worker.engine.batch import Batch
from worker.engine.rows import Output, Row
from worker.engine.thread import Engine
from worker.model.ahead import Ahead
from worker.model.loading import load


async def test_a_failed_step_fails_its_rows_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single bad request must not take the engine down."""
    step = Batch.step
    fail = False

    def failing(batch: Batch) -> list[Output]:
        nonlocal fail
        if fail:
            fail = False
            raise RuntimeError("a kernel said no")
        return step(batch)

    monkeypatch.setattr(Batch, "step", failing)
    async with serving() as worker:
        async with worker.stream(max_tokens=ENDLESS) as stream:
            await anext(stream)
            fail = True
            events: list[Any] = [event async for event in stream]
        assert events[-1]["error"]["code"] == "engine_error"
        assert await worker.text()
        assert (await worker.health())["in_flight"] == 0


async def test_an_engine_that_fails_again_and_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as worker:

        def failing(batch: Batch) -> list[Output]:
            raise RuntimeError("a kernel said no")

        monkeypatch.setattr(Batch, "step", failing)
        statuses = [(await worker.chat()).status_code for _ in range(3)]
        assert worker.ended is not None
        assert await worker.ended == ExitCode.ENGINE
    assert statuses == [500, 500, 502]


async def test_a_row_that_can_not_start_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = Batch.insert

    def failing(batch: Batch, row: Row) -> None:
        if row.max_tokens == 13:
            raise ValueError("unlucky")
        insert(batch, row)

    monkeypatch.setattr(Batch, "insert", failing)
    async with serving() as worker:
        good, bad, mate = await asyncio.gather(
            worker.chat(), worker.chat(max_tokens=13), worker.chat(stream=True)
        )
        assert (await worker.health())["in_flight"] == 0
    assert (good.status_code, bad.status_code, mate.status_code) == (200, 500, 200)
    assert bad.json()["error"]["code"] == "engine_error"


async def test_a_long_load_shows_signs_of_life_and_says_503(monkeypatch: pytest.MonkeyPatch) -> None:
    lively = threading.Event()

    def slow(*arguments: Any) -> Any:
        assert lively.wait(30)
        return load(*arguments)

    monkeypatch.setattr("worker.app.load", slow)
    async with serving(wait=False) as loading:
        health = await loading.health()
        early = await loading.chat()
        models = await loading.client.get("/v1/models")
        cancel = await loading.client.post("/admin/requests/x/cancel")
        async with asyncio.timeout(20):
            while sum(isinstance(status, Progress) for status in loading.said) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        lively.set()
        await loading.until(lambda health: health["state"] == "ready", "not ready")
    assert health["state"] == "loading"
    assert {early.status_code, models.status_code, cancel.status_code} == {503}
    assert early.json()["error"]["code"] == "loading"
    assert isinstance(loading.said[-1], Ready)


async def test_told_to_stop_while_loading_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(*arguments: Any) -> Any:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        raise RuntimeError("released")

    monkeypatch.setattr("worker.app.load", endless)
    async with serving(wait=False) as loading:
        assert (await loading.health())["state"] == "loading"
        assert loading.app is not None and loading.ended is not None
        loading.app.stop()
        assert await asyncio.wait_for(loading.ended, 20) == ExitCode.OK
        release.set()


async def test_a_load_without_a_first_token_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready is said only after a token was really generated."""

    def failing(batch: Batch) -> list[Output]:
        raise ValueError("does not yet support batching with history")

    monkeypatch.setattr(Batch, "step", failing)
    async with serving(wait=False) as worker:
        assert worker.ended is not None
        assert await worker.ended == ExitCode.FAILED
    failed = worker.said[-1]
    assert isinstance(failed, Failed)
    assert "first token" in failed.message
    assert not any(isinstance(status, Ready) for status in worker.said)


async def test_a_taken_socket_fails_the_load_and_is_left_alone(tmp_path: Path) -> None:
    async with serving() as worker:
        assert worker.app is not None
        said: list[Any] = []
        second = App(worker.app.record, said.append, lambda path: None, Engine(), Ahead())
        assert await second.run() == ExitCode.FAILED
        assert await worker.text()
    assert isinstance(said[-1], Failed) and said[-1].kind is FailureKind.SOCKET


async def test_connections_of_another_user_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stranger(connection: socket.socket) -> bool:
        return is_own_peer(connection, probe=lambda _: 4242)

    async with serving() as worker:
        monkeypatch.setattr("worker.app.is_own_peer", stranger)
        reader, writer = await asyncio.open_unix_connection(str(worker.socket))
        writer.write(b"GET /admin/health HTTP/1.1\r\nhost: w\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        monkeypatch.undo()
        assert (await worker.health())["state"] == "ready"

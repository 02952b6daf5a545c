"""The watch over a worker that answers, refuses, or cannot be asked."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.admin import Health
from supervisor.settings import WatchSettings
from supervisor.workers import watch as watch_module
from supervisor.workers.control import NoAnswer, ask_health
from supervisor.workers.upstream import Upstream
from supervisor.workers.watch import Watch
from tests.unit.workers.test_watchdog import health

SETTINGS = WatchSettings(silence_s=1.0, stall_s=0.3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other in no time."""
    monkeypatch.setattr(watch_module, "BUSY_S", 0.05)
    monkeypatch.setattr(watch_module, "IDLE_S", 0.2)


class Worker:
    """Answers health as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.running = 0
        self.steps = 0
        self.answer: bytes | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                body = self.answer or msgspec.json.encode(health(running=self.running, steps=self.steps))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def watched(folder: Path, *, busy: bool = False) -> AsyncIterator[tuple[Worker, Watch, Upstream]]:
    worker = Worker()
    path = folder / "w.sock"
    server = await asyncio.start_unix_server(worker.serve, path)
    upstream = Upstream(path)
    heard: list[Health] = []
    try:
        yield worker, Watch(upstream, SETTINGS, is_busy=lambda: busy, on_health=heard.append), upstream
    finally:
        upstream.close()
        server.close()
        await asyncio.sleep(0)


def never() -> set[asyncio.Future[Any]]:
    return {asyncio.get_running_loop().create_future()}


async def test_an_idle_worker_is_left_in_peace(tmp_path: Path) -> None:
    async with watched(tmp_path) as (worker, watch, _):
        watching = asyncio.ensure_future(watch.run(never()))
        await asyncio.sleep(0.5)
        assert worker.asked <= 4
        watching.cancel()


async def test_work_wakes_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "IDLE_S", 60.0)
    async with watched(tmp_path) as (worker, watch, _):
        watching = asyncio.ensure_future(watch.run(never()))
        await asyncio.sleep(0.2)
        worker.running = 1  # and no step
        watch.touch()
        assert await watching == "1 requests were running and it made no step for 0.3 s"


async def test_a_stall_is_told(tmp_path: Path) -> None:
    async with watched(tmp_path, busy=True) as (worker, watch, _):
        worker.running = 3
        cause = await watch.run(never())
        assert cause is not None and cause.startswith("3 requests")


async def test_a_worker_whose_socket_is_gone_is_silent(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, watch, __):
        (tmp_path / "w.sock").unlink()
        assert await watch.run(never()) == "it did not answer for 1 s"


async def test_nonsense_is_no_answer(tmp_path: Path) -> None:
    async with watched(tmp_path) as (worker, watch, upstream):
        worker.answer = b'{"state": "fine"}'
        with pytest.raises(NoAnswer, match="not a Health"):
            await ask_health(upstream)
        assert await watch.run(never()) == "it did not answer for 1 s"


async def test_our_own_lack_of_descriptors_is_not_held_against_the_worker(tmp_path: Path) -> None:
    async with watched(tmp_path) as (worker, watch, _):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        hoard = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            while True:
                hoard.append(os.dup(0))
        except OSError:
            pass
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await watch.run(never())
            assert worker.asked == 0
        finally:
            for descriptor in hoard:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_watch_ends_when_it_should(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, watch, __):
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watching = asyncio.ensure_future(watch.run({end}))
        await asyncio.sleep(0.1)
        end.set_result(None)
        assert await watching is None

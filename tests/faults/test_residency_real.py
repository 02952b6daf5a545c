"""The same with real workers: their imports, their native calls and their signals are not the fake's."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from supervisor.catalog.catalog import ModelEntry
from supervisor.settings import ModelSettings, WatchSettings
from tests.fixtures.pools import Bench, running
from tests.fixtures.tiny import tiny_model

pytestmark = pytest.mark.timeout(120)

WORKER = (sys.executable, "-m", "worker")
WATCH = WatchSettings(silence_s=10, stall_s=30, drain_s=5, kill_grace_s=3)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


def tiny(name: str) -> ModelEntry:
    return ModelEntry(id=name, directory=tiny_model(), settings=ModelSettings(hold_s=0.0))


async def chat(bench: Bench, entry: ModelEntry) -> int:
    """One request; the generation that answered."""
    body = msgspec.json.encode(
        {"model": entry.id, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    )
    async with bench.pool.slot(entry) as slot:
        async with await slot.upstream.request("POST", b"/v1/chat/completions", body=body) as response:
            answer = await response.read()
        assert response.status == 200, answer
        return slot.generation


@pytest.mark.slow
async def test_a_real_worker_serves_dies_comes_back_and_makes_room(tmp_path: Path) -> None:
    async with running(tmp_path, room=1, spare=True, watch=WATCH, command=WORKER) as bench:
        a, b = tiny("a"), tiny("b")
        assert await chat(bench, a) == 1
        worker = bench.worker("a")
        assert worker is not None and worker.pid is not None and worker.footprint_bytes > 0
        os.kill(worker.pid, signal.SIGKILL)
        await bench.said("worker.ready", "a", count=2)
        assert await chat(bench, a) == 2
        assert await chat(bench, b) == 1
        assert bench.kinds("a")[-3:] == ["worker.draining", "worker.stopping", "worker.gone"]
        ended = [event.fields for event in bench.events if event.kind == "worker.died"]
        assert len(ended) == 1 and ended[0]["how"] == "killed by SIGKILL"

        missing = ModelEntry(id="c", directory=tmp_path / "nowhere", settings=ModelSettings(hold_s=0.0))
        error = await bench.refused(missing)
        assert error.code == "engine_unavailable" and str(tmp_path) not in error.message
        assert bench.kinds("c").count("worker.starting") == 1, "it would fail the same way again"


async def test_real_workers_end_in_time_in_whatever_phase(tmp_path: Path) -> None:
    async with running(tmp_path, spare=True, watch=WATCH, command=WORKER) as bench:
        load = asyncio.ensure_future(bench.pool.load(tiny("a")))
        await bench.said("worker.starting", "a")
        await asyncio.sleep(0.5)  # somewhere in its imports
        async with asyncio.timeout(20):
            await bench.pool.stop(grace_s=5)
        await asyncio.gather(load, return_exceptions=True)

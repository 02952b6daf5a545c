"""Faults around the end of a pool, and what one that was killed leaves to the next."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.home import Home
from supervisor.settings import WatchSettings
from supervisor.workers import family
from supervisor.workers.ledger import Entry, Ledger
from supervisor.workers.upstream import UpstreamError
from tests.fixtures.fake_shapes import COMMAND, Behaviour, Load
from tests.fixtures.pools import running


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


async def test_stop_lets_answers_finish_and_refuses_what_is_new(tmp_path: Path) -> None:
    watch = WatchSettings(silence_s=5, drain_s=5, kill_grace_s=1)
    async with running(tmp_path, watch=watch) as bench:
        entry = bench.model("a")
        await bench.pool.load(entry)
        slow = [
            asyncio.ensure_future(bench.chat(entry, Behaviour(chunks=10, interval_ms=50))) for _ in range(8)
        ]
        await asyncio.sleep(0.1)
        stop = asyncio.ensure_future(bench.pool.stop(grace_s=5))
        await bench.said("worker.draining", "a")
        error = await bench.refused(entry)
        assert (error.status, error.code) == (503, "stopping")
        assert {answer.generation for answer in await asyncio.gather(*slow)} == {1}
        await stop


async def test_stop_ends_answers_that_take_too_long(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.pool.load(entry)
        endless = [asyncio.ensure_future(bench.chat(entry, Behaviour(first_ms=60_000))) for _ in range(16)]
        await asyncio.sleep(0.1)
        started = asyncio.get_running_loop().time()
        await bench.pool.stop(grace_s=0.5)
        assert 0.5 <= asyncio.get_running_loop().time() - started < 15
        for result in await asyncio.gather(*endless, return_exceptions=True):
            assert isinstance(result, Exception)


async def test_a_second_stop_with_less_grace_cuts_the_first_short(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.pool.load(entry)
        endless = asyncio.ensure_future(bench.chat(entry, Behaviour(first_ms=60_000)))
        await asyncio.sleep(0.1)
        first = asyncio.ensure_future(bench.pool.stop(grace_s=30))
        await bench.said("worker.draining", "a")
        async with asyncio.timeout(20):
            await bench.pool.stop(grace_s=0)
            await first
        await asyncio.gather(endless, return_exceptions=True)


async def test_stop_during_a_load(tmp_path: Path) -> None:
    async with running(tmp_path, spare=True) as bench:
        entry = bench.model("a", Load(never_ready=True))
        waiting = [asyncio.ensure_future(bench.refused(entry)) for _ in range(3)]
        await bench.said("worker.starting", "a")
        async with asyncio.timeout(20):
            await bench.pool.stop(grace_s=30)
        assert {error.code for error in await asyncio.gather(*waiting)} == {"stopping"}


async def test_stop_with_workers_that_ignore_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        stubborn = bench.model("a", Load(ignore_sigterm=True))
        hung = bench.model("b", Load(fork_grandchild=True))
        await bench.pool.load(stubborn)
        await bench.pool.load(hung)
        worker = bench.worker("b")
        assert worker is not None and worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        async with asyncio.timeout(20):
            await bench.pool.stop(grace_s=0.5)


async def test_stop_while_a_worker_is_waiting_to_come_back(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(die_at_load=None, never_ready=False))
        await bench.pool.load(entry)
        for count in (1, 2):
            worker = bench.worker("a")
            assert worker is not None and worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            await bench.said("worker.restarting", "a", count=count)
            if count == 1:
                await bench.said("worker.ready", "a", count=2)
        async with asyncio.timeout(20):
            await bench.pool.stop(grace_s=5)
        assert bench.pool.state_of("a") is None


async def test_a_slot_that_is_held_through_the_end_tells_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        async with bench.pool.slot(entry) as slot:
            await bench.pool.stop(grace_s=0.2)
            with pytest.raises(UpstreamError):
                await slot.upstream.request("GET", b"/admin/health")
            assert (await slot.failure()).code == "engine_unavailable"


async def test_stale_sockets_are_removed_and_everything_else_is_left_alone(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(home.worker_socket(1)))
    stale.close()
    home.worker_socket(2).write_text("mine")
    home.worker_socket(3).symlink_to(tmp_path / "elsewhere")
    async with running(tmp_path) as bench:
        assert not home.worker_socket(1).exists()
        entry, other = bench.model("a"), bench.model("b")
        await bench.chat(entry)
        await bench.chat(other)
        sockets = {worker.socket for worker in bench.pool.engine().workers}
        assert sockets == {str(home.worker_socket(1)), str(home.worker_socket(4))}
        assert bench.kinds().count("socket.left_alone") >= 2
    assert home.worker_socket(2).read_text() == "mine"
    assert home.worker_socket(3).is_symlink()


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from tests.fixtures.pools import running

async def main() -> None:
    async with running(Path(sys.argv[1])) as bench:
        await bench.pool.load(bench.model("a"))
        print(bench.worker("a").pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_workers_of_a_killed_supervisor_leave(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    worker = psutil.Process(int(await process.stdout.readline()))
    process.kill()
    await process.wait()
    assert not family.wait([worker], 2.0)
    # The next one starts at once on what was left: a socket file, and the list of processes.
    async with running(tmp_path) as bench:
        assert (await bench.chat(bench.model("a"))).generation == 1


async def test_what_a_killed_supervisor_left_hanging_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that SIGSTOP holds can't notice the end of its lifeline."""
    monkeypatch.setattr("supervisor.workers.ledger._LEAVE_S", 0.3)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    worker = psutil.Process(int(await process.stdout.readline()))
    worker.suspend()
    process.kill()
    await process.wait()
    async with running(tmp_path) as bench:
        assert "orphans.killed" in bench.kinds()
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
        assert (await bench.chat(bench.model("a"))).generation == 1


async def test_a_pid_that_belongs_to_another_process_now_is_left_alone(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    path = home.lock_file.with_name("workers.json")
    innocent = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    ledger = Ledger(path)
    created = psutil.Process(innocent.pid).create_time()
    # The same start but another command line; the same command line but another start.
    ledger.add(Entry(innocent.pid, created, (*COMMAND, "--status-fd", "9")))
    ledger.add(Entry(other.pid, created - 3600, tuple(psutil.Process(other.pid).cmdline())))
    assert len(json.loads(path.read_bytes())) == 2
    async with running(tmp_path) as bench:
        assert innocent.returncode is None and other.returncode is None
        assert "orphans.killed" not in bench.kinds()
        for process in (innocent, other):
            process.kill()
            await process.wait()

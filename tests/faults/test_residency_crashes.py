"""Faults of workers that die or hang while they are needed, as the pool sees them."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from supervisor.settings import WatchSettings
from supervisor.workers.upstream import UpstreamError
from tests.fixtures.fake_shapes import COMMAND, Behaviour, Death, Load
from tests.fixtures.pools import QUICK, Bench, running
from tests.fixtures.waits import SHORT_S


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


def pid_of(bench: Bench, name: str) -> int:
    worker = bench.worker(name)
    assert worker is not None and worker.pid is not None
    return worker.pid


async def test_a_killed_worker_comes_back_and_others_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        a, b = bench.model("a"), bench.model("b")
        await asyncio.gather(bench.pool.load(a), bench.pool.load(b))
        other = asyncio.ensure_future(bench.chat(b, Behaviour(chunks=10, interval_ms=30)))
        async with bench.pool.slot(a) as slot:
            request = slot.upstream.request(
                "POST", b"/v1/chat/completions", body=b'{"fake": {"chunks": 1000, "interval_ms": 20}}'
            )
            streaming = asyncio.ensure_future(request)
            await asyncio.sleep(0.1)
            os.kill(pid_of(bench, "a"), signal.SIGKILL)
            with pytest.raises(UpstreamError):
                await streaming
            error = await slot.failure()
        assert (error.status, error.code) == (502, "engine_unavailable")
        assert "killed by SIGKILL" in error.message
        # The next request waits for the fresh worker.
        assert (await bench.chat(a)).generation == 2
        assert (await other).generation == 1
        worker = bench.worker("a")
        assert worker is not None and worker.last_exit is not None
        assert (worker.restarts, worker.last_exit.signal) == (1, "SIGKILL")


async def test_an_idle_worker_that_is_killed_comes_back_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.chat(bench.model("a"))
        os.kill(pid_of(bench, "a"), signal.SIGKILL)
        await bench.said("worker.ready", "a", count=2)


async def test_a_death_before_the_first_byte_is_retried_once(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        fake = Behaviour(die_before_first_byte=True, generations=(1,))
        assert (await bench.chat(entry, fake)).generation == 2


async def test_a_request_that_kills_every_worker_is_answered_with_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(stderr=("all is well",)))
        error = await bench.refused(entry, Behaviour(die_before_first_byte=True))
        assert error.code == "engine_unavailable"
        assert "killed by SIGKILL" in error.message and "all is well" in error.message


async def test_a_failed_connection_to_a_healthy_worker_keeps_the_worker(tmp_path: Path) -> None:
    """Whoever asks for a slot after a failure gets the same worker if that proves to be well."""
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        assert (await bench.chat(entry)).generation == 1
        async with bench.pool.slot(entry, after=1) as slot:
            assert slot.generation == 1


async def test_a_stopped_worker_is_noticed_by_its_silence(tmp_path: Path) -> None:
    async with running(tmp_path, watch=QUICK) as bench:
        entry = bench.model("a")
        await bench.chat(entry)
        os.kill(pid_of(bench, "a"), signal.SIGSTOP)
        # It accepts the connection and says nothing; the watch kills it, and the retry is served.
        async with asyncio.timeout(20):
            assert (await bench.chat(entry)).generation == 2
        worker = bench.worker("a")
        assert worker is not None and worker.last_exit is not None
        assert worker.last_exit.describe() == "killed by SIGKILL: it did not answer for 1 s"


async def test_a_blocked_event_loop_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path, watch=QUICK) as bench:
        entry = bench.model("a")
        async with asyncio.timeout(20):
            assert (await bench.chat(entry, Behaviour(block=True, generations=(1,)))).generation == 2


async def test_an_engine_that_makes_no_step_is_noticed(tmp_path: Path) -> None:
    """The worker's loop answers health all the while."""
    async with running(tmp_path, watch=QUICK) as bench:
        entry = bench.model("a")
        async with asyncio.timeout(20):
            assert (await bench.chat(entry, Behaviour(wedge=True, generations=(1,)))).generation == 2
        worker = bench.worker("a")
        assert worker is not None and worker.last_exit is not None
        assert "made no step for 1.5 s" in worker.last_exit.describe()


async def test_slow_but_steady_work_is_not_taken_for_a_hang(tmp_path: Path) -> None:
    async with running(tmp_path, watch=QUICK) as bench:
        answer = await bench.chat(bench.model("a"), Behaviour(chunks=6, interval_ms=400))
        assert answer.generation == 1


async def test_a_load_that_says_nothing_is_ended(tmp_path: Path) -> None:
    watch = WatchSettings(silence_s=0.5, stall_s=5, drain_s=1, kill_grace_s=0.3)
    async with running(tmp_path, watch=watch) as bench:
        entry = bench.model("a", Load(never_ready=True, generations=(1,)))
        async with asyncio.timeout(20):
            assert (await bench.chat(entry)).generation == 2


async def test_a_worker_that_dies_at_load_waits_then_fails_and_costs_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        a, b = bench.model("a", Load(stderr=("no such tensor",), die_at_load=Death(exit=1))), bench.model("b")
        failing = asyncio.ensure_future(bench.refused(a))
        assert (await bench.chat(b)).generation == 1
        error = await failing
        assert "no such tensor" in error.message
        assert "can't be loaded" in error.message
        starts = [event.at for event in bench.events if event.kind == "worker.starting"]
        assert bench.kinds("a").count("worker.starting") == 3
        assert starts[-1] - starts[0] >= SHORT_S  # twice at once, then after a wait
        me = psutil.Process()
        before = me.cpu_times()
        await asyncio.sleep(1.0)
        after = me.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.2


async def test_a_worker_of_another_version_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, command=(*COMMAND, "--lie-about-version", "9.9.9")) as bench:
        error = await bench.refused(bench.model("a"))
        assert "version 9.9.9" in error.message
        assert bench.kinds("a").count("worker.starting") == 1


async def test_a_worker_that_refuses_its_record_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        error = await bench.refused(bench.model("a", Load(lie_about_version="0.0.1")))
        assert "another version" in error.message
        assert bench.kinds("a").count("worker.starting") == 1


async def test_a_command_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, command=("/nonexistent/worker",)) as bench:
        error = await bench.refused(bench.model("a"))
        assert "could not be started" in error.message and "No such file" in error.message


async def test_memory_is_known_after_the_load_and_after_work(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(footprint_bytes=123_000_000))
        await bench.chat(entry)
        worker = bench.worker("a")
        assert worker is not None and worker.footprint_bytes == 123_000_000
        assert worker.idle_s is not None and worker.in_flight == 0


async def test_a_client_that_leaves_reaches_the_worker(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", max_concurrency=1)
        await bench.pool.load(entry)
        answers = [asyncio.ensure_future(bench.chat(entry, Behaviour(first_ms=60_000))) for _ in range(2)]
        async with asyncio.timeout(20):
            await bench.facts_with("a", lambda facts: facts.started == 1)
            for answer in answers:
                answer.cancel()
            await asyncio.wait(answers)
            # One that ran, and one that waited for the row or had just got it.
            facts = await bench.facts_with("a", lambda facts: facts.cancelled == 2)
        assert facts.finished == 0
        assert (await bench.chat(entry)).generation == 1


async def test_an_error_of_our_own_ends_in_a_failed_model_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        with monkeypatch.context() as patch:
            patch.setattr(bench.home, "worker_log", lambda _: 1 / 0)
            error = await bench.refused(entry)
        assert "internal error (ZeroDivisionError)" in error.message
        assert [record.exc_info is not None for record in caplog.records] == [True]
        await bench.pool.load(entry)
        assert (await bench.chat(entry)).generation == 2

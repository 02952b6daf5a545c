"""Faults of memory: what does not fit, what grows, what the system kills, what is short."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from supervisor.cli.models import asking
from supervisor.system.pressure import Level
from tests.fixtures.fake_shapes import Behaviour, Death, Load
from tests.fixtures.pools import COST_BYTES, Bench, running
from tests.fixtures.waits import SHORT_S


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


def loaded(bench: Bench) -> set[str]:
    return {worker.id for worker in bench.pool.engine().workers if worker.pid is not None}


async def test_a_model_that_never_fits_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        bench.costs.estimates["a"] = 3 * COST_BYTES
        error = await bench.refused(bench.model("a"))
        assert (error.status, error.code) == (507, "does_not_fit")
        assert "needs 286.1 MiB" in error.message and "may take 95.4 MiB" in error.message


async def test_bytes_decide_who_is_loaded_beside_whom(tmp_path: Path) -> None:
    async with running(tmp_path, room=4) as bench:
        bench.costs.estimates |= {"large": 3 * COST_BYTES, "small": COST_BYTES, "middle": 2 * COST_BYTES}
        large, small, middle = bench.model("large"), bench.model("small"), bench.model("middle")
        await bench.chat(large)
        await bench.chat(small)
        assert loaded(bench) == {"large", "small"}
        await bench.chat(middle)
        assert loaded(bench) == {"small", "middle"}, "the small one need not leave"
        view = bench.pool.engine().memory
        assert (view.booked_bytes, view.budget_bytes) == (3 * COST_BYTES, 4 * COST_BYTES)


async def test_a_load_that_the_system_kills_is_not_tried_again_beside_the_same_models(tmp_path: Path) -> None:
    """10. The other one leaves before it is tried again, and there is a wait in which memory comes free."""
    async with running(tmp_path, room=2) as bench:
        other = bench.model("b")
        await bench.chat(other)
        entry = bench.model("a", Load(die_at_load=Death(signal="SIGKILL"), generations=(1,)))
        answer = await bench.chat(entry)
        assert answer.generation == 2
        assert bench.pool.state_of("b") is None
        (more,) = [event for event in bench.events if event.kind == "model.needs_more"]
        assert more.fields["needs_bytes"] == int(1.25 * COST_BYTES)
        starts = [event.at for event in bench.events if event.kind == "worker.starting"]
        assert starts[-1] - starts[-2] >= 0.9 * SHORT_S
        worker = bench.worker("a")
        assert worker is not None and worker.last_exit is not None
        assert worker.last_exit.signal == "SIGKILL"
        assert "may not fit into memory" in worker.last_exit.describe()
        # b may load again, but not beside it.
        await bench.chat(other)
        assert bench.pool.state_of("a") is None


async def test_a_model_that_is_removed_while_the_system_kills_its_load_ends_when_it_has_answered(
    tmp_path: Path,
) -> None:
    """What it costs is known anew then, and that made it one that is configured."""
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(die_at_load=Death(signal="SIGKILL"), generations=(1,)))
        answer = asyncio.ensure_future(bench.chat(entry))
        await bench.said("worker.starting", "a")
        # The catalog has never heard of it.
        bench.pool.configure(bench.pool._settings)
        assert (await answer).generation == 2
        await bench.said("worker.gone", "a", count=2)
        (stopping,) = [event for event in bench.events if event.kind == "worker.stopping"]
        assert stopping.fields["reason"] == "removed"


async def test_a_rest_that_ends_while_the_timer_looks_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop's timers may be a moment early. Once that had passed, the request waited for ever."""
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(die_at_load=Death(signal="SIGKILL"), generations=(1,)))
        answer = asyncio.ensure_future(bench.chat(entry))
        await bench.said("model.needs_more")
        ticker, loop = bench.pool._ticker, asyncio.get_running_loop()
        due_s = bench.pool._residency.next_tick(loop.time())
        assert due_s is not None and ticker._timer is not None
        ticker._timer.cancel()
        times = iter((due_s - 0.001, due_s + 0.001))
        with monkeypatch.context() as patched:
            patched.setattr(ticker, "_loop", SimpleNamespace(time=lambda: next(times), call_at=loop.call_at))
            ticker._ring()
        assert ticker._timer is not None
        assert (await answer).generation == 2


async def test_loads_that_are_always_killed_end_in_a_failed_model(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        error = await bench.refused(bench.model("a", Load(die_at_load=Death(signal="SIGKILL"))))
        assert error.code == "engine_unavailable" and "may not fit into memory" in error.message
        assert bench.kinds("a").count("worker.starting") == 3
        assert bench.pool.state_of("a") == "failed"


async def test_a_worker_that_grows_is_booked_and_idle_ones_leave_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, room=2) as bench:
        await bench.chat(bench.model("idle"))
        # It says at once that it holds more than it was expected to.
        entry = bench.model("a", Load(footprint_bytes=COST_BYTES + 1_000_000))
        await bench.chat(entry)
        await bench.said("worker.gone", "idle")
        worker = bench.worker("a")
        assert worker is not None and worker.booked_bytes == COST_BYTES + 1_000_000
        # It is known the next time: the estimate is what it was, the cost is not.
        await bench.pool.unload("a")
        await bench.chat(entry)
        worker = bench.worker("a")
        assert worker is not None
        assert (worker.estimate_bytes, worker.measured_bytes) == (COST_BYTES, COST_BYTES + 1_000_000)


async def test_what_workers_may_take_is_together_never_more_than_the_budget(tmp_path: Path) -> None:
    """Each was told the whole budget, so that two busy ones could take it twice."""
    async with running(tmp_path, room=10) as bench:
        models = [bench.model(name) for name in ("a", "b", "c")]
        for number, entry in enumerate(models, 1):
            await bench.chat(entry)
            shares = [await _share(bench, one.id, below=10 // number + 1) for one in models[:number]]
            assert sum(shares) <= 10 * COST_BYTES
            assert min(shares) >= COST_BYTES
        options = (await bench.facts("c")).record.options
        assert options.memory_bytes is not None and options.memory_bytes <= 4 * COST_BYTES
        assert options.budget_bytes == 10 * COST_BYTES
        await bench.pool.unload("c")
        await bench.facts_with("a", lambda facts: (facts.limit_bytes or 0) > 4 * COST_BYTES)


async def _share(bench: Bench, name: str, *, below: int) -> int:
    """What the worker was told that it may take, once that is less than what so many models count for."""
    most = below * COST_BYTES
    facts = await bench.facts_with(
        name, lambda facts: facts.limit_bytes is not None and facts.limit_bytes < most
    )
    assert facts.limit_bytes is not None
    return facts.limit_bytes


async def test_what_a_worker_has_promised_its_rows_counts_before_they_hold_it(tmp_path: Path) -> None:
    async with running(tmp_path, room=2) as bench:
        await bench.chat(bench.model("idle"))
        await bench.chat(bench.model("a", Load(reserved_bytes=COST_BYTES + 1_000_000)))
        await bench.said("worker.gone", "idle")
        worker = bench.worker("a")
        assert worker is not None and worker.booked_bytes == COST_BYTES + 1_000_000
        # It is a promise, and no footprint.
        assert worker.measured_bytes is None or worker.measured_bytes < COST_BYTES


async def test_a_row_that_needs_more_waits_for_the_end_of_the_other_models_answers(tmp_path: Path) -> None:
    """One row alone was let in beyond its share, and what both held then was more than the budget."""
    async with running(tmp_path, room=4) as bench:
        busy = bench.model("busy", Load(reserved_bytes=3 * COST_BYTES))
        await bench.pool.load(busy)
        end = tmp_path / "end"
        slow = asyncio.ensure_future(bench.chat(busy, Behaviour(until=str(end))))
        await bench.facts_with("busy", lambda facts: facts.started > 0)
        entry = bench.model("a", Load(wanted_bytes=2 * COST_BYTES))
        await bench.pool.load(entry)
        other_end = tmp_path / "other end"
        answer = asyncio.ensure_future(bench.chat(entry, Behaviour(until=str(other_end))))
        await bench.said("worker.asks", "a")
        worker = bench.worker("a")
        assert worker is not None and worker.asks is not None
        assert worker.asks.bytes == 2 * COST_BYTES
        assert worker.asks.behind == {"busy": 3 * COST_BYTES}
        assert worker.share_bytes == COST_BYTES
        line = asking(msgspec.to_builtins(worker))
        assert line.startswith("a waits for 95.4 MiB more for a long row, held by busy (286.1 MiB), since ")
        end.touch()
        await slow
        await bench.said("worker.asked", "a")
        assert ((await bench.facts("a")).limit_bytes or 0) >= 2 * COST_BYTES
        assert bench.pool.engine().memory.booked_bytes <= 4 * COST_BYTES
        other_end.touch()
        await answer


async def test_a_held_model_stays_for_a_moment_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        entry, other = bench.model("a", hold_s=0.6), bench.model("b")
        await bench.pool.load(entry)
        running_chat = asyncio.ensure_future(bench.chat(entry, Behaviour(chunks=4, interval_ms=50)))
        await bench.facts_with("a", lambda facts: facts.started > 0)
        waiting = asyncio.ensure_future(bench.chat(other))
        await running_chat
        answered = asyncio.get_running_loop().time()
        worker = bench.worker("a")
        assert worker is not None and worker.why == "held"
        (waits,) = bench.pool.engine().waiting
        assert (waits.id, waits.reason, waits.behind) == ("b", "room", ("a",))
        await waiting
        # It counts from the end of the answer, of which we hear a moment later.
        assert asyncio.get_running_loop().time() - answered >= 0.5


async def test_who_comes_when_a_model_rests_waits_for_its_end_alone(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        entry, other = bench.model("a", hold_s=3600), bench.model("b", hold_s=3600)
        for model in (entry, other, entry):
            await bench.chat(model)
            worker = bench.worker(model.id)
            assert worker is not None and worker.why == "idle"


async def test_two_agents_on_two_models_do_not_change_places_at_every_turn(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        models = [bench.model("a", hold_s=1.0), bench.model("b", hold_s=1.0)]

        async def agent(number: int) -> None:
            for _ in range(9):
                assert (await bench.chat(models[number])).model == models[number].id
                await asyncio.sleep(0.02)

        await asyncio.gather(agent(0), agent(1))
        # Many turns each at a time; without hold it would be eighteen loads.
        assert bench.kinds().count("worker.ready") <= 8


async def test_under_pressure_idle_models_trim_then_leave_and_loads_wait(tmp_path: Path) -> None:
    async with running(tmp_path, room=3) as bench:
        idle, busy = bench.model("idle"), bench.model("busy")
        await bench.chat(idle)
        await bench.pool.load(busy)
        end = tmp_path / "end"
        slow = asyncio.ensure_future(bench.chat(busy, Behaviour(until=str(end))))
        await bench.facts_with("busy", lambda facts: facts.started > 0)
        bench.pool.press(Level.WARN)
        await bench.said("worker.trimmed", "idle")
        bench.pool.press(Level.CRITICAL)
        await bench.said("worker.gone", "idle")
        assert bench.pool.state_of("busy") == "ready"
        waiting = asyncio.ensure_future(bench.chat(idle))
        end.touch()
        await slow
        await bench.said("worker.gone", "busy")
        assert not waiting.done()
        assert bench.pool.engine().waiting[0].reason == "pressure"
        assert bench.pool.engine().memory.pressure == "critical"
        bench.pool.press(Level.NORMAL)
        assert (await waiting).model == "idle"


async def test_too_many_who_wait_are_refused_over_all_models(tmp_path: Path) -> None:
    async with running(tmp_path, room=1, max_waiting=3) as bench:
        models = [bench.model(name, Load(load_s=0.3)) for name in "abcd"]
        answers = [asyncio.ensure_future(bench.chat(model)) for model in models[:3]]
        await bench.said("worker.starting")
        error = await bench.refused(models[3])
        assert (error.status, error.code) == (429, "queue_full")
        assert error.retry_after_s is not None and "memory.max_waiting" in error.message
        await asyncio.gather(*answers)


async def test_a_clock_that_jumps_makes_nobody_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """18. Only monotonic time counts, and that stands still while the machine sleeps."""
    async with running(tmp_path) as bench:
        entry = bench.model("a", idle_unload_s=60.0)
        await bench.chat(entry)
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: 4e9)
            await asyncio.sleep(0.1)
            assert (await bench.chat(entry)).generation == 1
        worker = bench.worker("a")
        assert worker is not None and worker.leaves_s is not None and 50 < worker.leaves_s <= 60


async def test_a_pinned_model_stays_under_pressure_and_is_trimmed(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", pin=True)
        await bench.chat(entry)
        bench.pool.press(Level.CRITICAL)
        await bench.said("worker.trimmed", "a")
        assert (await bench.chat(entry)).generation == 1
        worker = bench.worker("a")
        assert worker is not None and worker.why == "pinned" and worker.leaves_s is None
        bench.pool.press(Level.NORMAL)
        os.kill(worker.pid or 0, signal.SIGKILL)
        await bench.said("worker.ready", "a", count=2)

"""Faults of models that come and go: many at once, in each other's way, or going away meanwhile."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from shared.status import FailureKind
from supervisor.settings import ModelSettings
from tests.fixtures.fake_shapes import COMMAND, Behaviour, Death, Load
from tests.fixtures.models import write_fake_model
from tests.fixtures.pools import Bench, running


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


def processes() -> list[psutil.Process]:
    """Worker processes of ours that are not reaped."""
    return [child for child in psutil.Process().children() if "fake_worker" in " ".join(child.cmdline())]


async def test_fifty_first_requests_share_one_load(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(load_s=0.2))
        answers = await asyncio.gather(*(bench.chat(entry) for _ in range(50)))
        assert {answer.generation for answer in answers} == {1}
        assert bench.kinds("a") == ["worker.starting", "worker.ready"]


async def test_two_models_run_beside_each_other(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        a, b = bench.model("a"), bench.model("b")
        first, second = await asyncio.gather(bench.chat(a), bench.chat(b))
        assert first.pid != second.pid
        assert {worker.id for worker in bench.pool.engine().workers} == {"a", "b"}


async def test_alternating_requests_with_room_for_one(tmp_path: Path) -> None:
    """Never two processes, and a load begins only when the process before it is reaped."""
    async with running(tmp_path, room=1) as bench:
        a, b = bench.model("a"), bench.model("b")
        most = 0

        async def client(number: int) -> None:
            nonlocal most
            answer = await bench.chat(b if number % 2 else a)
            assert answer.model == ("b" if number % 2 else "a")
            most = max(most, len(processes()))

        # Ten at a time: turns come in batches.
        for start in range(0, 40, 10):
            await asyncio.gather(*(client(number) for number in range(start, start + 10)))
        assert most == 1
        assert bench.kinds().count("worker.ready") <= 9
        alive: set[object] = set()
        for event in bench.events:
            if event.kind == "worker.starting":
                alive.add(event.fields["model"])
                assert len(alive) == 1
            elif event.kind == "worker.gone":
                alive.remove(event.fields["model"])


async def test_one_client_that_alternates_gets_every_answer(tmp_path: Path) -> None:
    async with running(tmp_path, room=1, spare=True) as bench:
        models = [bench.model("a"), bench.model("b")]
        for number in range(6):
            assert (await bench.chat(models[number % 2])).model == models[number % 2].id


async def test_a_storm_for_three_models_with_room_for_one(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        models = [bench.model(name) for name in "abc"]
        fake = Behaviour(chunks=3, interval_ms=20)

        async def client(number: int) -> None:
            for turn in range(3):
                model = models[(number + turn) % 3]
                assert (await bench.chat(model, fake)).model == model.id

        await asyncio.gather(*(client(number) for number in range(12)))
        # Nothing in flight was ever cut: 36 answers, and no worker died of anything but being told to.
        assert "worker.died" not in bench.kinds()
        assert bench.kinds().count("worker.ready") <= 18


async def test_a_request_while_its_model_is_being_unloaded(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.chat(entry)
        unload = asyncio.ensure_future(bench.pool.unload("a"))
        await bench.said("worker.draining", "a")
        answer = await bench.chat(entry)
        assert answer.generation == 2
        await unload


async def test_requests_while_the_idle_timer_fires(tmp_path: Path) -> None:
    """The timer may fire at any moment between two requests: each gets the old worker or a fresh one."""
    async with running(tmp_path) as bench:
        entry = bench.model("a", idle_unload_s=0.05)
        for number in range(8):
            await bench.chat(entry)
            await asyncio.sleep(0.04 + 0.003 * number)
        await bench.until(lambda: bench.worker("a") is None)
        assert "worker.died" not in bench.kinds()


async def test_unloading_lets_a_running_answer_finish(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.pool.load(entry)
        slow = asyncio.ensure_future(bench.chat(entry, Behaviour(chunks=10, interval_ms=50)))
        await asyncio.sleep(0.1)
        await bench.pool.unload("a")
        assert (await slow).generation == 1
        assert bench.pool.state_of("a") is None


async def test_the_client_that_caused_a_load_goes_away(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(load_s=0.4))
        first = asyncio.ensure_future(bench.chat(entry))
        await bench.said("worker.starting", "a")
        second = asyncio.ensure_future(bench.chat(entry))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).generation == 1
        assert bench.kinds("a").count("worker.starting") == 1


async def test_everybody_who_wanted_a_load_goes_away(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(never_ready=True, generations=(1,)), hold_s=0.2)
        request = asyncio.ensure_future(bench.chat(entry))
        await bench.said("worker.starting", "a")
        request.cancel()
        # It is kept for a moment, in case that the client tries again, and then ended.
        await bench.said("worker.gone", "a")
        stopping = next(event for event in bench.events if event.kind == "worker.stopping")
        assert stopping.fields["reason"] == "abandoned"
        assert (await bench.chat(entry)).generation == 2


async def test_an_abandoned_load_that_dies_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(load_s=0.2, die_at_load=Death()), hold_s=5)
        request = asyncio.ensure_future(bench.chat(entry))
        await bench.said("worker.starting", "a")
        request.cancel()
        await bench.said("worker.gone", "a")
        assert bench.kinds("a").count("worker.starting") == 1


async def test_a_model_whose_load_fails_asked_for_twenty_times(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        lines = (
            "loading",
            '  File "/home/me/x.py", line 1',
            "ValueError: bad weights in /home/me/models/a/x",
        )
        entry = bench.model("a", Load(stderr=lines, die_at_load=Death(exit=7)))
        other = bench.model("b")
        errors = await asyncio.gather(*(bench.refused(entry) for _ in range(20)))
        assert {error.status for error in errors} == {502}
        assert {error.code for error in errors} == {"engine_unavailable"}
        assert "exit code 7" in errors[0].message and "ValueError: bad weights in x" in errors[0].message
        assert "/home/me" not in errors[0].message
        # Twice at once, once after a wait, then no more.
        assert bench.kinds("a").count("worker.starting") == 3
        assert bench.pool.state_of("a") == "failed"
        again = asyncio.ensure_future(bench.refused(entry))
        for _ in range(3):
            await asyncio.sleep(0)
        assert again.done(), "it waits for something"
        await again
        assert (await bench.chat(other)).model == "b"
        assert bench.kinds("a").count("worker.starting") == 3


@pytest.mark.parametrize("kind", [FailureKind.MISSING, FailureKind.UNSUPPORTED, FailureKind.UNUSABLE])
async def test_a_load_that_would_fail_the_same_way_again_is_told_after_the_first(
    tmp_path: Path, kind: FailureKind
) -> None:
    """A tokenizer that could not be read was read three times, and only then was anybody told."""
    async with running(tmp_path) as bench:
        assert "was told to fail" in (await bench.refused(bench.model("a", Load(fail=kind)))).message
        assert bench.kinds("a").count("worker.starting") == 1
        worker = bench.worker("a")
        assert worker is not None and worker.failure is not None and "was told to fail" in worker.failure


async def test_a_failed_model_is_tried_again_by_hand_or_after_a_change(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", Load(fail=FailureKind.UNSUPPORTED))
        error = await bench.refused(entry)
        assert "was told to fail" in error.message
        assert bench.kinds("a").count("worker.starting") == 1, "it would fail the same way again"
        entry = bench.model("a", Load())
        assert (await bench.refused(entry)).status == 502
        await bench.pool.load(entry)
        assert (await bench.chat(entry)).generation == 2
        broken = bench.model("b", Load(fail=FailureKind.MISSING))
        await bench.refused(broken)
        mended = bench.model("b", Load(), context=128)
        assert (await bench.chat(mended)).model == "b"


async def test_a_full_queue_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a", max_concurrency=1, queue=2)
        fake = Behaviour(chunks=5, interval_ms=40)
        results = await asyncio.gather(*(bench.chat(entry, fake) for _ in range(5)), return_exceptions=True)
        errors = [error for error in results if isinstance(error, Exception)]
        assert [getattr(error, "code", error) for error in errors] == ["queue_full"] * 2


async def test_a_spare_serves_the_next_load_whatever_the_model(tmp_path: Path) -> None:
    async with running(tmp_path, spare=True) as bench:
        await bench.said("spare.starting")
        spare = bench.pool.engine().spare
        assert spare is not None
        assert (await bench.chat(bench.model("a"))).pid == spare.pid
        await bench.said("spare.starting", count=2)
        next_spare = bench.pool.engine().spare
        assert next_spare is not None and next_spare.pid != spare.pid


async def test_the_spare_reads_ahead_for_whoever_waits_while_another_model_leaves(tmp_path: Path) -> None:
    async with running(tmp_path, room=1, spare=True) as bench:
        a, b = bench.model("a"), bench.model("b")
        await bench.said("spare.starting")
        await bench.chat(a)
        await bench.said("spare.starting", count=2)
        await bench.chat(b)
        assert f"preview of {b.directory}" in bench.home.worker_log("b").read_text()
        # What follows is a guess, which a wrong one leaves without harm.
        await bench.said("spare.starting", count=3)
        c = bench.model("c")
        assert (await bench.chat(c)).model == "c"
        previews = [
            line.rpartition(" ")[2]
            for line in bench.home.worker_log("c").read_text().splitlines()
            if "preview of" in line
        ]
        assert previews == [str(a.directory), str(c.directory)]


async def test_a_new_spare_waits_for_the_first_answer_of_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its imports took a core from the very answer that had waited for the load."""
    monkeypatch.setattr("supervisor.workers.spare.SPARE_WAIT_S", 3600)
    async with running(tmp_path, spare=True) as bench:
        await bench.said("spare.starting")
        entry = bench.model("a")
        slow = asyncio.ensure_future(bench.chat(entry, Behaviour(chunks=4, interval_ms=50)))
        await bench.said("worker.ready", "a")
        await bench.facts_with("a", lambda facts: facts.started > 0)
        assert bench.kinds().count("spare.starting") == 1
        await slow
        await bench.said("spare.starting", count=2)


async def test_a_new_spare_does_not_wait_for_a_long_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.workers.spare.SPARE_WAIT_S", 0.05)
    async with running(tmp_path, spare=True) as bench:
        await bench.said("spare.starting")
        endless = asyncio.ensure_future(bench.chat(bench.model("a"), Behaviour(chunks=600, interval_ms=100)))
        await bench.said("spare.starting", count=2)
        assert not endless.done()
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)


async def test_a_dead_spare_is_replaced_and_harms_no_load(tmp_path: Path) -> None:
    async with running(tmp_path, spare=True) as bench:
        await bench.said("spare.starting")
        spare = bench.pool.engine().spare
        assert spare is not None
        os.kill(spare.pid, signal.SIGKILL)
        assert (await bench.chat(bench.model("a"))).model == "a"


async def test_a_spare_that_always_dies_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, spare=True, command=(*COMMAND, "--die-after-import", "5")) as bench:
        await bench.until(lambda: any(event.fields.get("gives_up") for event in bench.events))
        assert bench.kinds().count("spare.starting") == 3
        error = await bench.refused(bench.model("a"))
        assert error.code == "engine_unavailable" and "exit code 5" in error.message


async def test_preloaded_models_are_there_without_a_request(tmp_path: Path) -> None:
    models = {
        name: ModelSettings(source=str(write_fake_model(tmp_path / name)), preload=True) for name in "abc"
    }
    async with running(tmp_path, models=models, room=2) as bench:
        await bench.said("worker.ready", "a")
        await bench.said("worker.ready", "b")
        # What has no place is told, and throws nobody out.
        assert [event.fields["model"] for event in bench.events if event.kind == "preload.no_room"] == ["c"]
        assert bench.pool.state_of("c") is None


async def test_a_preload_that_fails_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    models = {"a": ModelSettings(source=str(folder), preload=True)}
    async with running(tmp_path, models=models) as bench:
        await bench.said("preload.failed", "a")
        assert "worker.starting" not in bench.kinds()


async def test_a_pinned_model_keeps_its_place(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        await bench.chat(bench.model("a", pin=True))
        error = await bench.refused(bench.model("b"))
        assert (error.status, error.code) == (507, "does_not_fit")


async def lease(bench: Bench, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Take a lease as a local program does: on the worker's own socket, for as long as it is open."""
    worker = bench.worker(name)
    assert worker is not None and worker.socket is not None
    reader, writer = await asyncio.open_unix_connection(worker.socket)
    writer.write(b"POST /admin/lease HTTP/1.1\r\nhost: worker\r\ncontent-length: 0\r\n\r\n")
    await reader.readuntil(b"leased")
    return reader, writer


async def test_a_leased_worker_is_not_evicted(tmp_path: Path) -> None:
    async with running(tmp_path, room=1) as bench:
        a, b = bench.model("a"), bench.model("b")
        await bench.pool.load(a)
        _, writer = await lease(bench, "a")
        waiting = asyncio.ensure_future(bench.chat(b))
        await bench.said("worker.leased", "a")
        assert not waiting.done()
        assert bench.pool.engine().waiting[0].id == "b"
        writer.close()
        assert (await waiting).model == "b"
        assert bench.kinds("a").count("worker.gone") == 1


async def test_requests_wait_for_the_end_of_a_lease(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        entry = bench.model("a")
        await bench.chat(entry)
        _, writer = await lease(bench, "a")
        waiting = asyncio.ensure_future(bench.chat(entry))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        writer.close()
        assert (await waiting).generation == 1

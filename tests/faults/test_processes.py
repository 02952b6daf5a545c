"""Faults of one worker process: what it does wrong, and that nothing of it is left afterwards."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.launch import LaunchRecord
from supervisor.telemetry.appendfile import AppendFile
from supervisor.workers.process import WorkerProcess
from tests.fixtures.fake_shapes import COMMAND, Death, Load, write_load
from tests.fixtures.leaks import nothing_left


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The two loops start and reap processes in ways of their own."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A folder for sockets; what the test leaves there or runs fails it."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with nothing_left(folder):
        yield folder


async def spawn(*arguments: str, environ: Mapping[str, str] = os.environ) -> WorkerProcess:
    return await WorkerProcess.spawn((*COMMAND, *arguments), environ)


def assign(process: WorkerProcess, run: Path, load: Load | None = None) -> None:
    model = run.parent / "model"
    write_load(model, load or Load())
    record = LaunchRecord(socket=str(run / "w-1.sock"), model="m", directory=str(model), generation=1)
    process.assign(record, AppendFile(run.parent / "worker.log"))


async def loaded(process: WorkerProcess) -> None:
    either: set[asyncio.Future[Any]] = {process.ready, process.exited}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    assert process.ready.done() and not process.ready.cancelled(), process.last_lines


async def test_a_life_from_spare_to_reaped(run: Path) -> None:
    process = await spawn()
    states: list[str] = [process.state]
    assign(process, run)
    states.append(process.state)
    await loaded(process)
    states.append(process.state)
    assert (run / "w-1.sock").stat().st_mode & 0o777 == 0o600
    assert os.getpgid(process.pid) == os.getpgid(0)
    ended = await process.stop(grace_s=5)
    assert (ended.code, ended.signal, ended.during) == (0, None, "stopping")
    assert [*states, process.state] == ["spare", "loading", "ready", "exited"]


async def test_a_spare_that_is_not_needed_leaves(run: Path) -> None:
    process = await spawn()
    ended = await process.stop(grace_s=5)
    assert ended.during == "stopping"


async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(ignore_sigterm=True))
    await loaded(process)
    ended = await process.stop(grace_s=0.3)
    assert ended.signal == "SIGKILL"
    assert ended.lived_s < 20


async def test_a_second_stop_with_less_grace_cuts_the_first_short(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(ignore_sigterm=True))
    await loaded(process)
    first = asyncio.ensure_future(process.stop(grace_s=30))
    await asyncio.sleep(0.1)
    ended = await process.stop(grace_s=0)
    assert ended.signal == "SIGKILL"
    assert await first == ended


async def test_a_stopped_process_is_killed(run: Path) -> None:
    """SIGTERM stays pending on a process that SIGSTOP holds; SIGKILL does not."""
    process = await spawn()
    assign(process, run)
    await loaded(process)
    os.kill(process.pid, signal.SIGSTOP)
    process.kill("silent for 10 s")
    ended = await process.exited
    assert ended.describe() == "killed by SIGKILL: silent for 10 s"


@pytest.mark.parametrize("sudden", [False, True])
async def test_a_grandchild_that_holds_stdout_does_not_outlive_the_worker(run: Path, sudden: bool) -> None:
    """It ignores SIGTERM and keeps the worker's stdout open, so waiting for the pipe's end would hang."""
    process = await spawn()
    assign(process, run, Load(fork_grandchild=True))
    await loaded(process)
    (grandchild,) = psutil.Process(process.pid).children(recursive=True)
    if sudden:
        os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        ended = await (process.exited if sudden else process.stop(grace_s=3))
    assert ended.signal == ("SIGKILL" if sudden else None)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


async def test_the_last_words_of_a_failed_load_are_kept(run: Path) -> None:
    process = await spawn()
    lines = tuple(f"line {number}" for number in range(30))
    assign(process, run, Load(stderr=lines, die_at_load=Death(exit=7)))
    ended = await process.exited
    assert (ended.code, ended.during) == (7, "loading")
    assert ended.describe() == "exit code 7 while loading"
    assert ended.last_lines == lines[-20:]
    assert process.ready.cancelled()
    log = (run.parent / "worker.log").read_text().splitlines()
    assert len(log) == 30 and log[0].endswith("line 0")


async def test_a_signal_at_load_is_told_as_lack_of_memory(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(die_at_load=Death(signal="SIGSEGV")))
    ended = await process.exited
    assert ended.describe() == "killed by SIGSEGV while loading: it may not fit into memory"


async def test_a_worker_of_another_version_is_killed(run: Path) -> None:
    process = await spawn("--lie-about-version", "9.9.9")
    ended = await process.exited
    assert process.mismatch == "9.9.9"
    assert ended.cause is not None and "9.9.9" in ended.cause


async def test_a_worker_leaves_when_its_lifeline_ends(run: Path) -> None:
    """What the end of the supervisor looks like to the worker, however the supervisor ended."""
    process = await spawn()
    assign(process, run)
    await loaded(process)
    assert process._lifeline is not None
    os.close(process._lifeline)
    process._lifeline = None
    async with asyncio.timeout(20):
        assert (await process.exited).code == 0


async def test_a_blocked_worker_leaves_when_its_lifeline_ends(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(silent_after_s=0.0))
    await loaded(process)
    assert process._lifeline is not None
    os.close(process._lifeline)
    process._lifeline = None
    async with asyncio.timeout(20):
        await process.exited


async def test_workers_do_not_inherit_each_others_lifelines(run: Path) -> None:
    first, second = await spawn(), await spawn()
    assert first._lifeline is not None
    os.close(first._lifeline)
    first._lifeline = None
    async with asyncio.timeout(20):
        await first.exited
    assert not second.exited.done()
    await second.stop(grace_s=3)


async def test_a_flood_of_output_is_taken_and_kept(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(stdout_lines=20_000))
    await loaded(process)
    await process.stop(grace_s=3)
    assert len((run.parent / "worker.log").read_text().splitlines()) == 20_000


async def test_a_log_that_cannot_be_written_harms_nothing(run: Path) -> None:
    (run.parent / "worker.log").mkdir()
    process = await spawn()
    assign(process, run, Load(stderr=("one", "two")))
    await loaded(process)
    await process.stop(grace_s=3)
    assert process.dropped_lines == 2
    assert process.last_lines == ("one", "two")


async def test_garbage_on_the_status_pipe_is_not_believed(run: Path) -> None:
    process = await spawn()
    assign(process, run, Load(garbage_status=True))
    await loaded(process)
    await process.stop(grace_s=3)
    assert any("not a status message" in line for line in process.last_lines)


async def test_a_worker_sees_no_secrets(run: Path) -> None:
    environ = {
        **os.environ,
        "HF_TOKEN": "hf_secret",
        "OPENAI_API_KEY": "sk-secret",
        "MLX_SUPERVISOR_SERVER_KEY": "secret",
        "MLX_API_KEY": "secret",
        "MLX_DISABLE_COMPILE": "1",
    }
    process = await spawn(environ=environ)
    seen = psutil.Process(process.pid).environ()
    assert not [name for name, value in seen.items() if "secret" in value]
    assert seen["MLX_DISABLE_COMPILE"] == "1" and seen["HF_HUB_OFFLINE"] == "1"
    await process.stop(grace_s=3)


async def test_a_command_that_cannot_be_started_leaves_no_pipe(run: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await WorkerProcess.spawn(("/nonexistent/worker",), os.environ)

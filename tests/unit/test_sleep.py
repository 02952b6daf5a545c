"""Idle sleep is held off while requests run, by a process that never outlives its use."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from supervisor.system.sleep import (
    LINGER_S,
    Caffeinate,
    NoAssertion,
    SleepGuard,
    caffeinate_command,
    system_assertion,
)

Children = Callable[[], list[psutil.Process]]

WAITING = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


class Recorder:
    """An assertion that writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def take(self) -> None:
        self.calls.append("take")

    def release(self) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def children() -> Children:
    """The processes that this test started and that are not reaped."""
    others = {process.pid for process in psutil.Process().children()}
    return lambda: [process for process in psutil.Process().children() if process.pid not in others]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_held_while_requests_run_and_a_while_longer() -> None:
    recorder = Recorder()
    guard = SleepGuard(recorder)
    guard.update(0, 0)
    assert recorder.calls == [] and not guard.is_holding()
    guard.update(1, 10)
    guard.update(3, 11)
    assert guard.is_holding()
    guard.update(0, 11 + LINGER_S - 0.1)
    assert guard.is_holding() and "release" not in recorder.calls
    guard.update(0, 11 + LINGER_S)
    assert not guard.is_holding() and recorder.calls[-1] == "release"
    guard.update(0, 1000)
    assert recorder.calls.count("release") == 1


def test_a_request_within_the_while_keeps_it() -> None:
    recorder = Recorder()
    guard = SleepGuard(recorder, linger_s=10)
    guard.update(1, 0)
    guard.update(0, 9)
    guard.update(1, 9.5)
    guard.update(0, 15)
    assert guard.is_holding()
    guard.close()
    assert recorder.calls[-1] == "close" and not guard.is_holding()


def test_the_process_runs_exactly_while_it_is_held(children: Children) -> None:
    caffeinate = Caffeinate(WAITING)
    assert not caffeinate.is_held()
    caffeinate.take()
    caffeinate.take()
    assert caffeinate.is_held() and len(children()) == 1
    caffeinate.release()
    assert not caffeinate.is_held()
    caffeinate.take()
    assert caffeinate.is_held()
    caffeinate.close()
    assert not caffeinate.is_held() and not children()
    caffeinate.close()


def test_a_process_that_somebody_ended_is_started_anew(children: Children) -> None:
    caffeinate = Caffeinate(WAITING)
    caffeinate.take()
    (first,) = children()
    first.send_signal(signal.SIGKILL)
    wait_for(lambda: not caffeinate.is_held())
    caffeinate.take()
    assert caffeinate.is_held() and children()[0].pid != first.pid
    caffeinate.close()
    assert not children()


def test_released_processes_leave_no_zombies(children: Children) -> None:
    caffeinate = Caffeinate(WAITING)
    for _ in range(3):
        caffeinate.take()
        caffeinate.release()

    def all_reaped() -> bool:
        caffeinate.release()
        return not children()

    wait_for(all_reaped)


def test_one_that_will_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, children: Children
) -> None:
    monkeypatch.setattr("supervisor.system.sleep._END_TIMEOUT_S", 0.05)
    marker = tmp_path / "deaf"
    caffeinate = Caffeinate([sys.executable, "-S", "-c", STUBBORN, str(marker)])
    caffeinate.take()
    wait_for(marker.exists)
    caffeinate.close()
    assert not children()


def test_a_system_without_it_is_told_once_each_time_and_goes_on() -> None:
    failures: list[OSError] = []
    caffeinate = Caffeinate(["/nonexistent/caffeinate"], on_failure=failures.append)
    caffeinate.take()
    assert not caffeinate.is_held() and len(failures) == 1
    caffeinate.release()
    caffeinate.close()


def test_only_a_mac_is_kept_awake() -> None:
    assert isinstance(system_assertion("darwin"), Caffeinate)
    assert isinstance(system_assertion("linux"), NoAssertion)
    guard = SleepGuard(system_assertion("linux"))
    guard.update(1, 0)
    guard.update(0, 1000)
    guard.close()


def test_the_command_ends_with_the_process_it_serves() -> None:
    assert caffeinate_command(123) == ["caffeinate", "-i", "-w", "123"]

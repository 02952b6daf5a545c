"""Refusals in the manager's terms, a stop that fits, a log that stays small."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared import __version__
from supervisor.home import Home, HomeError
from supervisor.settings import Settings, SettingsError, WatchSettings
from supervisor.system.commands import Output, ServiceError
from supervisor.system.job import ManagerName
from supervisor.system.launchd import Launchd
from supervisor.system.listener import PortError
from supervisor.system.managed import (
    RETRY_S,
    Managed,
    fitted_stop,
    forget_refusal,
    read_refusal,
    record_path,
    trim_log,
)


class RefusedStart(Exception):  # noqa: N818
    pass


def refused(cause: Exception) -> Callable[[], int]:
    def start() -> int:
        raise RefusedStart(str(cause)) from cause

    return start


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    # The handler that a waiting start sets is for the process of its own that it is.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return []


@pytest.mark.parametrize(
    ("manager", "cause", "code", "waits"),
    [
        ("launchd", SettingsError(["config.toml:3: server.port must be …"]), 0, []),
        ("systemd", SettingsError(["config.toml:3: server.port must be …"]), 78, []),
        ("launchd", PortError("port 8080 on 127.0.0.1 is taken by node (pid 9)"), 75, [RETRY_S]),
        ("systemd", PortError("port 8080 on 127.0.0.1 is taken by node (pid 9)"), 75, []),
        ("launchd", HomeError("models is a symlink that leads to no folder"), 0, []),
    ],
)
def test_a_refusal_is_told_in_the_managers_terms(
    tmp_path: Path,
    slept: list[float],
    capfd: pytest.CaptureFixture[str],
    manager: ManagerName,
    cause: Exception,
    code: int,
    waits: list[float],
) -> None:
    managed = Managed(manager, tmp_path / "home", sleep=slept.append)
    assert managed.run(refused(cause), RefusedStart) == code
    assert slept == waits
    refusal = read_refusal(tmp_path / "home")
    assert refusal is not None
    assert (refusal.reason, refusal.passing) == (str(cause), code == 75)
    assert (refusal.pid, refusal.version) == (os.getpid(), __version__)
    assert abs(refusal.at - time.time()) < 5
    assert f"refused to start: {cause}" in capfd.readouterr().err


def test_another_supervisor_in_the_state_folder_may_go_away(tmp_path: Path, slept: list[float]) -> None:
    home = Home.open(tmp_path / "home")
    lock = home.lock()
    try:
        managed = Managed("launchd", home.path, sleep=slept.append)
        cause = HomeError("another supervisor (pid 9) runs")
        assert managed.run(refused(cause), RefusedStart) == 75
    finally:
        lock.close()
    assert slept == [RETRY_S]


def test_a_folder_that_is_not_ours_is_not_written_to(
    tmp_path: Path, slept: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    managed = Managed("launchd", folder, sleep=slept.append)
    assert managed.run(refused(HomeError("its mode is 0777")), RefusedStart) == 0
    assert list(folder.iterdir()) == []
    assert "its mode is 0777" in capfd.readouterr().err


def test_a_start_that_works_forgets_the_refusal_of_before(tmp_path: Path, slept: list[float]) -> None:
    Managed("launchd", tmp_path, sleep=slept.append).run(refused(PortError("taken")), RefusedStart)
    assert read_refusal(tmp_path) is not None
    assert Managed("launchd", tmp_path, sleep=slept.append).run(lambda: 7, RefusedStart) == 7
    assert read_refusal(tmp_path) is None
    forget_refusal(tmp_path)


def test_a_crash_stays_a_crash(tmp_path: Path) -> None:
    def crash() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Managed("launchd", tmp_path).run(crash, RefusedStart)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"at": "x"}', b"\xff"])
def test_a_record_that_is_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run").mkdir()
    record_path(tmp_path).write_bytes(content)
    assert read_refusal(tmp_path) is None


def test_a_waiting_start_leaves_at_once_and_in_good_order_when_it_is_told_to(tmp_path: Path) -> None:
    """SIGTERM during the wait is a stop like any other: exit 0, so launchd does not start it again."""
    script = (
        "import sys; from pathlib import Path;"
        "from supervisor.system.managed import Managed; from supervisor.system.listener import PortError\n"
        "def start(): raise KeyError('x') from PortError('taken')\n"
        "sys.exit(Managed('launchd', Path(sys.argv[1])).run(start, KeyError))"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"refused to start" in process.stderr.readline()
        while read_refusal(tmp_path) is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


# The stop.


@pytest.mark.parametrize(
    ("stop_s", "drain_s", "grace_s"),
    [(20.0, None, None), (15.0, None, None), (5.0, 2.2, 0.8), (2.0, 0.0, 0.5)],
)
def test_the_stop_fits_into_what_the_manager_gives(
    stop_s: float, drain_s: float | None, grace_s: float | None
) -> None:
    flags = fitted_stop(Settings(), stop_s)
    if drain_s is None:
        assert flags == {}
        return
    assert flags == {"watch.drain": f"{drain_s:.1f}s", "watch.kill_grace": f"{grace_s:.1f}s"}


def test_a_longer_drain_than_the_manager_waits_is_cut(tmp_path: Path) -> None:
    settings = Settings(watch=WatchSettings(drain_s=60.0))
    flags = fitted_stop(settings, 20.0)
    assert flags == {"watch.drain": "15.0s", "watch.kill_grace": "3.0s"}
    # They are flags that the loader takes.
    from supervisor.settings import load_settings

    loaded = load_settings(tmp_path / "none.toml", environ={}, flags=flags)
    assert (loaded.watch.drain_s, loaded.watch.kill_grace_s) == (15.0, 3.0)


# The log.


def test_a_large_log_is_cut_to_its_last_whole_lines_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    lines = [f"line {number} {'x' * 90}\n" for number in range(20_000)]
    log.write_text("".join(lines))
    with log.open("ab", buffering=0) as held:
        trim_log(log)
        held.write(b"after\n")
    kept = log.read_text().splitlines(keepends=True)
    assert kept[-1] == "after\n"
    assert kept[:-1] == lines[-len(kept) + 1 :]
    assert 200_000 < log.stat().st_size < 300_000


def test_a_small_log_an_absent_one_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_text("small\n")
    trim_log(log)
    assert log.read_text() == "small\n"
    trim_log(tmp_path / "absent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        trim_log(tmp_path / "s")


def launchd_that_says(tmp_path: Path, printed: str) -> Launchd:
    return Launchd(tmp_path, uid=501, run=lambda _: Output(0 if printed else 113, printed, ""))


def test_before_the_start_the_log_is_cut_and_the_stop_is_fitted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    managed = Managed("launchd", tmp_path / "home")
    log = tmp_path / "home" / "logs" / "service.log"
    log.write_bytes(b"x" * 99 + b"\n")
    with log.open("ab") as file:
        file.write((b"y" * 99 + b"\n") * 20_000)
    manager = launchd_that_says(tmp_path, "x = {\n\texit timeout = 5\n}\n")
    flags = managed.prepare(manager, None, {}, {})
    assert flags == {"watch.drain": "2.2s", "watch.kill_grace": "0.8s"}
    assert log.stat().st_size < 300_000
    told = capfd.readouterr().err
    assert "launchd kills 5 s after it says stop" in told and "watch.drain 2.2s" in told


def test_what_a_manager_does_not_tell_is_the_usual_time(tmp_path: Path) -> None:
    managed = Managed("launchd", tmp_path / "home")
    assert managed.prepare(launchd_that_says(tmp_path, ""), None, {}, {}) == {}

    def absent(_: object) -> Output:
        raise ServiceError("launchctl is not on this machine's PATH")

    assert managed.prepare(Launchd(tmp_path, run=absent), None, {}, {}) == {}


def test_a_broken_configuration_is_left_for_the_start_to_tell(tmp_path: Path) -> None:
    managed = Managed("launchd", tmp_path / "home")
    (tmp_path / "home" / "config.toml").write_text("[server\n")
    assert managed.prepare(launchd_that_says(tmp_path, ""), None, {}, {}) == {}

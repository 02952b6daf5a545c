"""The user unit, `systemctl --user`, and what the program tells systemd."""

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from supervisor.system.commands import Output, ServiceError
from supervisor.system.job import Job
from supervisor.system.manager import JobState
from supervisor.system.systemd import Notifier
from supervisor.system.userunit import UNIT, Systemd, parse_state, unit
from tests.fixtures.launchd import shell_program

ODD = "a b\"c\\d%e$f'g;h #i"


def job_of(tmp_path: Path, word: str = "x") -> Job:
    home = tmp_path / f"home {word}".replace("/", "-")
    (home / "logs").mkdir(parents=True, exist_ok=True)
    program = shell_program(tmp_path / "bin" / "mlx-supervisor", "exec sleep 60")
    return Job(
        (str(program), "service", "run", "--home", str(home), "--host", word),
        {"HOME": "/home/me", "PATH": "/usr/bin:/bin", "HF_HOME": word},
        home,
    )


def systemd(tmp_path: Path, run: Callable[..., Output]) -> Systemd:
    return Systemd(tmp_path, environ={}, run=run)


def recorded(answer: Output | None = None) -> tuple[list[list[str]], Callable[..., Output]]:
    calls: list[list[str]] = []

    def run(command: Sequence[str]) -> Output:
        calls.append(list(command))
        return answer or Output(0)

    return calls, run


# The unit.


def test_the_unit_says_what_the_issue_asks_for(tmp_path: Path) -> None:
    lines = unit(job_of(tmp_path)).splitlines()
    for wanted in (
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=78",
        "KillMode=mixed",
        "TimeoutStopSec=20",
        "WatchdogSec=30",
        "OOMPolicy=continue",
        "WantedBy=default.target",
    ):
        assert wanted in lines
    assert any(line.startswith("LimitNOFILE=") for line in lines)


@pytest.mark.parametrize("word", ["x", ODD])
def test_the_unit_says_the_same_when_it_is_read(tmp_path: Path, word: str) -> None:
    _, run = recorded()
    manager = systemd(tmp_path, run)
    assert manager.read() is None
    job = job_of(tmp_path, word)
    manager.write(job)
    assert manager.read() == job
    assert manager.file == tmp_path / ".config" / "systemd" / "user" / UNIT
    assert stat.S_IMODE(manager.file.stat().st_mode) == 0o600
    manager.remove()
    manager.remove()
    assert not manager.file.exists()


def test_the_folder_follows_xdg_config_home(tmp_path: Path) -> None:
    manager = Systemd(tmp_path, environ={"XDG_CONFIG_HOME": str(tmp_path / "c")})
    assert manager.file == tmp_path / "c" / "systemd" / "user" / UNIT
    # A relative one is to be ignored, says the specification.
    assert Systemd(tmp_path, environ={"XDG_CONFIG_HOME": "c"}).file.is_relative_to(tmp_path / ".config")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("word", ["x", ODD])
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path, word: str) -> None:
    path = tmp_path / UNIT
    path.write_text(unit(job_of(tmp_path, word)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    about_it = [line for line in done.stderr.splitlines() if "mlx-supervisor" in line or str(path) in line]
    assert not about_it
    assert done.returncode == 0, done.stderr


def test_a_line_break_in_a_path_is_refused(tmp_path: Path) -> None:
    job = Job(("/bin/x", "a\nExecStartPre=/bin/evil"), {}, tmp_path)
    with pytest.raises(ServiceError, match="can't hold"):
        unit(job)
    with pytest.raises(ServiceError, match="can't hold"):
        unit(Job(("/bin/x",), {}, Path("/a\nb")))


@pytest.mark.parametrize("content", [b"", b"[Unit]\nDescription=x\n", b"\xff\xfe", b"ExecStart=\n"])
def test_a_file_that_is_not_ours_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    _, run = recorded()
    manager = systemd(tmp_path, run)
    manager.file.parent.mkdir(parents=True)
    manager.file.write_bytes(content)
    with pytest.raises(ServiceError, match=UNIT):
        manager.read()
    assert manager.file.read_bytes() == content


# systemctl.


def test_a_start_enables_forgets_failures_and_does_not_hang(tmp_path: Path) -> None:
    calls, run = recorded()
    systemd(tmp_path, run).start()
    assert [call[3:] for call in calls] == [
        ["enable", "--quiet", UNIT],
        ["reset-failed", UNIT],
        ["start", "--no-block", UNIT],
    ]
    assert all(call[:3] == ["systemctl", "--user", "--no-pager"] for call in calls)


@pytest.mark.parametrize(
    "stderr",
    [
        "Failed to connect to bus: No medium found\n",
        "Failed to connect to bus: $DBUS_SESSION_BUS_ADDRESS and $XDG_RUNTIME_DIR not defined\n",
    ],
)
def test_without_a_systemd_of_ones_own_it_says_so(tmp_path: Path, stderr: str) -> None:
    _, run = recorded(Output(1, "", stderr))
    with pytest.raises(ServiceError, match=r"no systemd of your own.*mlx-supervisor start"):
        systemd(tmp_path, run).state()


def test_a_masked_unit_says_how_to_unmask_it(tmp_path: Path) -> None:
    _, run = recorded(Output(1, "", f"Failed to enable unit: Unit {UNIT} is masked.\n"))
    with pytest.raises(ServiceError, match="systemctl --user unmask"):
        systemd(tmp_path, run).start()


def test_a_user_who_does_not_linger_is_told(tmp_path: Path) -> None:
    _, run = recorded(Output(0, "no\n"))
    (note,) = systemd(tmp_path, run).notes()
    assert "loginctl enable-linger" in note
    _, run = recorded(Output(0, "yes\n"))
    assert systemd(tmp_path, run).notes() == []
    _, run = recorded(Output(1, "", "no such user\n"))
    assert systemd(tmp_path, run).notes() == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("LoadState=not-found\nActiveState=inactive\nMainPID=0\n", JobState("not loaded")),
        (
            "LoadState=loaded\nActiveState=active\nMainPID=12\nUnitFileState=enabled\nTimeoutStopUSec=20s\n",
            JobState("running", 12, stop_s=20.0),
        ),
        ("LoadState=loaded\nActiveState=activating\nMainPID=12\n", JobState("starting", 12)),
        (
            "LoadState=loaded\nActiveState=activating\nMainPID=0\nResult=exit-code\nExecMainCode=1\n"
            "ExecMainStatus=75\n",
            JobState("waiting to restart", None, "exit code 75", failed=True),
        ),
        (
            "LoadState=loaded\nActiveState=failed\nMainPID=0\nResult=watchdog\nExecMainCode=3\n"
            "ExecMainStatus=6\nUnitFileState=disabled\n",
            JobState("stopped", None, "signal 6 (watchdog)", failed=True, disabled=True),
        ),
        (
            "LoadState=loaded\nActiveState=inactive\nMainPID=0\nResult=success\nExecMainCode=1\n"
            "ExecMainStatus=0\n",
            JobState("stopped", None, "exit code 0"),
        ),
    ],
)
def test_states(shown: str, expected: JobState) -> None:
    assert parse_state(shown) == expected


# sd_notify.


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        address = str(tmp_path / "notify") if request.param == "path" else f"@mlx-supervisor-{os.getpid()}"
        server.bind("\0" + address[1:] if address.startswith("@") else address)
        server.settimeout(5)
        yield server, address


def test_states_reach_the_manager(manager_socket: tuple[socket.socket, str]) -> None:
    server, address = manager_socket
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier.from_environ(environ)
    assert environ == {}, "child processes must not speak for us"
    assert notifier.watchdog_s == 15.0
    assert notifier.ready("serving on\nhttp://127.0.0.1:8080")
    assert server.recv(4096) == b"READY=1\nSTATUS=serving on http://127.0.0.1:8080"
    assert notifier.alive()
    assert server.recv(4096) == b"WATCHDOG=1"
    assert notifier.status("2 models")
    assert server.recv(4096) == b"STATUS=2 models"
    assert notifier.stopping()
    assert server.recv(4096) == b"STOPPING=1"
    notifier.close()
    notifier.close()
    assert not notifier.alive()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "/no/such/socket"},
        {"WATCHDOG_USEC": "30000000"},
    ],
)
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environ(environ)
    assert not notifier.ready() and not notifier.alive() and not notifier.stopping()
    notifier.close()


@pytest.mark.parametrize(
    "environ", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}]
)
def test_a_watchdog_for_somebody_else_or_none_is_not_fed(environ: dict[str, str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "n"))
        asked = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000000", **environ}
        notifier = Notifier.from_environ(asked)
        assert notifier.watchdog_s is None
        notifier.close()


def test_a_manager_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "n"))
        notifier = Notifier(str(tmp_path / "n"))
        sent = [notifier.alive() for _ in range(10_000)]
        assert not sent[-1]
        notifier.close()

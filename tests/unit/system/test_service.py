"""The service's verbs over launchd's rules, with a program in a line of shell."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import __version__
from supervisor.home import Home
from supervisor.settings import ServerSettings
from supervisor.system.commands import ServiceError
from supervisor.system.job import Job
from supervisor.system.launchd import LABEL, Launchd
from supervisor.system.managed import Refusal, record_path
from supervisor.system.service import Running, Service, Status, manager_of, new_job
from tests.fixtures.launchd import LoginSession, quoted, shell_program

ANY_PORT = ServerSettings(port=0)


class Machine:
    """A user's machine with the service on it. `serve` is what the program does from its next start on."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.program = folder / "bin" / "mlx-supervisor"
        self.serving = folder / "serving.json"
        self.session = LoginSession(folder / "user", scale=0.02)
        self.launchd = Launchd(folder / "user", uid=self.session.uid, run=self.session.run)
        self.service = Service(self.launchd, self.probe)
        self.job, _ = new_job((str(self.program),), "launchd", self.home, [], {"HOME": str(folder / "user")})
        self.serve()

    def probe(self, home: Path) -> Running | None:
        assert home == self.home
        try:
            running = Running(**json.loads(self.serving.read_text()))
            os.kill(running.pid, 0)
        except (OSError, ValueError):
            return None
        return running

    def serve(self, version: str = __version__, *, first: str = "") -> None:
        answer = f'{{"pid": %d, "version": "{version}", "url": "http://127.0.0.1:8080"}}'
        shell_program(self.program, f"{first}\nprintf '{answer}' $$ > {quoted(self.serving)}\nexec sleep 60")

    def refuse(self, reason: str, *, passing: bool = False) -> None:
        record = Refusal(0.0, 1, __version__, reason, passing)
        text = json.dumps({name: getattr(record, name) for name in record.__struct_fields__})
        end = "exec sleep 60" if passing else "exit 0"
        shell_program(self.program, f"cat > {quoted(record_path(self.home))} <<'END'\n{text}\nEND\n{end}")

    def status(self) -> Status:
        return self.service.status(self.home, (str(self.program),))

    def verbs(self) -> list[str]:
        """The verbs of launchctl that changed something since the last call."""
        done = [call[0] for call in self.session.calls if not call[0].startswith("print")]
        self.session.calls.clear()
        return done


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.session:
        yield machine


def test_install_starts_it_and_again_changes_nothing(machine: Machine) -> None:
    first = machine.service.install(machine.job)
    assert machine.verbs() == ["enable", "bootstrap"]
    written = machine.launchd.file.stat().st_mtime_ns
    assert machine.service.install(machine.job) == first
    assert machine.verbs() == []
    assert machine.launchd.file.stat().st_mtime_ns == written
    status = machine.status()
    assert (status.installed, status.serving, status.pid) == (True, True, first.pid)
    assert status.problems == []


def test_install_with_other_settings_restarts_it_with_them(machine: Machine) -> None:
    first = machine.service.install(machine.job)
    machine.verbs()
    job = Job((*machine.job.command, "--port", "9000"), machine.job.environment, machine.home)
    assert machine.service.install(job).pid != first.pid
    assert machine.verbs() == ["bootout", "enable", "bootstrap"]
    assert machine.session.job(LABEL).content["ProgramArguments"][-1] == "9000"


def test_install_over_one_that_had_ended_loads_the_new_file(machine: Machine) -> None:
    """What launchd has loaded is the old file, also when its program does not run."""
    machine.refuse("config.toml:3: server.port must be a whole number")
    with pytest.raises(ServiceError, match="refused to start"):
        machine.service.install(machine.job)
    machine.serve()
    job = Job((*machine.job.command, "--port", "9000"), machine.job.environment, machine.home)
    machine.service.install(job)
    assert machine.session.job(LABEL).content["ProgramArguments"][-1] == "9000"


def test_uninstall_leaves_everything_but_the_file(machine: Machine) -> None:
    machine.service.install(machine.job)
    (machine.home / "state.db").write_text("history")
    assert machine.service.uninstall() is True
    assert not machine.launchd.file.exists()
    assert machine.launchd.state().phase == "not loaded"
    assert (machine.home / "state.db").read_text() == "history"
    assert machine.service.uninstall() is False
    assert "not installed" in machine.status().problems[0]


def test_stop_start_and_restart(machine: Machine) -> None:
    first = machine.service.install(machine.job)
    machine.service.stop()
    assert machine.probe(machine.home) is None
    machine.service.stop()
    assert "does not run" in machine.status().problems[0]
    second = machine.service.start()
    assert machine.service.start() == second
    third = machine.service.restart()
    assert len({first.pid, second.pid, third.pid}) == 3


@pytest.mark.parametrize("verb", ["start", "stop", "restart"])
def test_verbs_without_a_service_say_how_to_install_it(machine: Machine, verb: str) -> None:
    with pytest.raises(ServiceError, match=r"not installed.*service install"):
        getattr(machine.service, verb)()


def test_after_an_upgrade_the_status_says_how_to_switch(machine: Machine) -> None:
    machine.serve(version="0.0.9")
    machine.service.install(machine.job)
    machine.serve()
    (problem,) = machine.status().problems
    assert problem.startswith(f"version 0.0.9 runs, version {__version__} is installed")
    assert "service restart" in problem
    machine.service.restart()
    assert machine.status().problems == []


def test_install_after_an_upgrade_switches(machine: Machine) -> None:
    machine.serve(version="0.0.9")
    machine.service.install(machine.job)
    machine.serve()
    assert machine.service.install(machine.job).version == __version__


def test_a_refused_start_is_told_with_its_reason(machine: Machine) -> None:
    machine.refuse("config.toml:3: server.port must be a whole number")
    with pytest.raises(
        ServiceError, match=r"refused to start at .*config.toml:3.* Mend it, then: .*service start"
    ):
        machine.service.install(machine.job)
    assert "config.toml:3" in machine.status().problems[0]
    machine.serve()
    machine.service.start()
    assert machine.status().problems == []


def test_a_start_that_waits_for_the_port_is_told_and_tried_at_once_by_hand(machine: Machine) -> None:
    machine.refuse("port 8080 on 127.0.0.1 is taken by node (pid 9)", passing=True)
    with pytest.raises(ServiceError, match=r"can't start yet: port 8080 .* node \(pid 9\).*by itself"):
        machine.service.install(machine.job)
    machine.verbs()
    machine.serve()
    machine.service.start()
    assert machine.verbs() == ["kickstart"]


def test_a_program_that_ends_at_once_is_told_with_its_last_words(machine: Machine) -> None:
    shell_program(machine.program, "echo 'ImportError: no module named mlx' >&2; exit 1")
    with pytest.raises(ServiceError, match=r"exit code 1.*ImportError: no module named mlx"):
        machine.service.install(machine.job)


def test_a_program_that_is_gone_is_named(machine: Machine) -> None:
    machine.service.install(machine.job)
    machine.service.stop()
    machine.program.unlink()
    with pytest.raises(ServiceError, match=f"is gone: {machine.program}.*service install"):
        machine.service.start()
    assert "is gone" in machine.status().problems[0]


def test_another_program_than_this_one_is_pointed_out(machine: Machine) -> None:
    machine.service.install(machine.job)
    status = machine.service.status(machine.home, ("/opt/homebrew/bin/mlx-supervisor",))
    assert f"runs {machine.program}, this is /opt/homebrew/bin/mlx-supervisor" in status.problems[0]


def test_a_supervisor_started_by_hand_is_told_apart(machine: Machine) -> None:
    def by_hand(home: Path) -> Running:
        return Running(os.getpid(), __version__, "http://127.0.0.1:8080")

    service = Service(machine.launchd, by_hand)
    assert "started by hand" in service.status(machine.home, ("x",)).problems[1]
    machine.launchd.write(machine.job)
    Home.open(machine.home)
    machine.launchd.start()
    status = service.status(machine.home, (str(machine.program),))
    assert not status.serving
    assert "not the service's" in status.problems[0]


def test_the_service_says_when_it_is_disabled(machine: Machine) -> None:
    machine.service.install(machine.job)
    machine.service.stop()
    machine.session.launchctl("disable", f"gui/{machine.session.uid}/{LABEL}")
    assert "disabled" in machine.status().problems[-1]
    machine.service.start()
    assert machine.status().problems == []


# What is in the way.


def test_nothing_is_in_the_way_of_a_first_install(machine: Machine) -> None:
    assert machine.service.obstacles(machine.job, ANY_PORT) == []
    assert not machine.home.exists(), "looking creates nothing"


def test_a_taken_port_is_in_the_way_and_its_holder_is_named(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = ServerSettings(port=taken.getsockname()[1])
        (obstacle,) = machine.service.obstacles(machine.job, server)
    assert f"port {server.port}" in obstacle and f"pid {os.getpid()}" in obstacle


def test_the_port_of_the_service_itself_is_not_in_its_way(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        machine.serve()
        machine.program.write_text(machine.program.read_text().replace(":8080", f":{port}"))
        machine.service.install(machine.job)
        assert machine.service.obstacles(machine.job, ServerSettings(port=port)) == []


def test_another_supervisor_with_the_state_folder_is_in_the_way(machine: Machine) -> None:
    lock = Home.open(machine.home).lock()
    try:
        (obstacle,) = machine.service.obstacles(machine.job, ANY_PORT)
    finally:
        lock.close()
    assert f"another supervisor (pid {os.getpid()}, version {__version__})" in obstacle
    assert "mlx-supervisor stop" in obstacle


def test_a_state_folder_that_others_can_read_is_in_the_way(machine: Machine) -> None:
    Home.open(machine.home)
    machine.home.chmod(0o755)
    (obstacle,) = machine.service.obstacles(machine.job, ANY_PORT)
    assert "chmod 700" in obstacle


# The choice.


@pytest.mark.parametrize(("platform", "name"), [("darwin", "launchd"), ("linux", "systemd")])
def test_each_system_has_its_manager(platform: str, name: str) -> None:
    assert manager_of(None, platform=platform, environ={"HOME": "/home/me"}).name == name


def test_where_there_is_none_and_under_sudo_it_says_what_to_do() -> None:
    with pytest.raises(ServiceError, match="mlx-supervisor start"):
        manager_of(None, platform="freebsd14", environ={})
    with pytest.raises(ServiceError, match="without sudo"):
        manager_of(None, environ={"SUDO_USER": "me"})


def test_a_command_names_manager_folder_and_options(tmp_path: Path) -> None:
    job, found = new_job(
        ("/bin/mlx-supervisor",), "systemd", tmp_path, ["--port", "9"], {"HOME": "/h", "HF_TOKEN": "x"}
    )
    assert job.command == (
        *("/bin/mlx-supervisor", "service", "run", "--manager", "systemd"),
        *("--home", str(tmp_path), "--port", "9"),
    )
    assert found.secrets == ("HF_TOKEN",) and "HF_TOKEN" not in job.environment

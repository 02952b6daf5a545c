"""The real program under the real systemd, as a user unit that `service install` wrote."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor.system.userunit import UNIT
from tests.fixtures.harness import chat_body, wait_until
from tests.fixtures.installed import install_program, upgrade
from tests.fixtures.mac import NO_SPARE, free_port
from tests.fixtures.models import models_config, write_fake_model
from tests.fixtures.user_systemd import SessionError, SystemdSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SystemdSession.why_not() is not None, reason=SystemdSession.why_not() or "can be tried"
    ),
    pytest.mark.timeout(180),  # a dozen starts of Python each, and systemd's seconds between them
]


class Linux:
    """A user's Linux machine with systemd, and the program in a `bin` folder on the PATH."""

    def __init__(self, session: SystemdSession, folder: Path) -> None:
        self.session = session
        self.home = session.user_home / ".mlx-supervisor"
        self.bin = folder / "bin"
        self.program = install_program(self.bin)
        self.port = free_port()
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=240, trust_env=False, verify=False
        )
        self.config = NO_SPARE + models_config(a=write_fake_model(folder / "models" / "a"))
        self.configure(self.config)

    def configure(self, text: str) -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def service(self, verb: str, *arguments: str) -> tuple[int, str]:
        """Exit code and output of `mlx-supervisor service VERB`."""
        done = self.session.run(
            str(self.program), "service", verb, *arguments, PATH=f"{self.bin}:/usr/bin:/bin"
        )
        return done.returncode, done.stdout + done.stderr

    def show(self, *names: str) -> dict[str, str]:
        asked = [f"--property={name}" for name in names]
        shown = self.session.run("systemctl", "--user", "show", UNIT, *asked).stdout
        return dict(line.split("=", 1) for line in shown.splitlines())

    @property
    def pid(self) -> int:
        return int(self.show("MainPID")["MainPID"])

    def status(self) -> dict[str, Any]:
        code, text = self.service("status", "--json")
        assert code in (0, 1), text
        found: dict[str, Any] = json.loads(text)
        return found

    def chat(self) -> int:
        return self.client.post("/v1/chat/completions", json=chat_body("a", "Hello")).status_code

    def serves(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/health").status_code == 200
        return False


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[Linux]:
    try:
        with SystemdSession(tmp_path / "you") as session:
            machine = Linux(session, tmp_path)
            yield machine
            machine.client.close()
    except SessionError as error:
        pytest.skip(f"no user manager comes up here: {error}")


def test_install_crash_upgrade_uninstall(linux: Linux) -> None:
    code, told = linux.service("install", "--port", str(linux.port))
    assert code == 0, told
    # Ready means that it serves.
    assert linux.show("ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    assert "serving" in linux.show("StatusText")["StatusText"]
    # With systemd's own choice a worker that is killed for memory would stop the whole unit.
    assert linux.show("OOMPolicy") == {"OOMPolicy": "continue"}
    assert linux.chat() == 200
    assert linux.status()["problems"] == []

    crashed = linux.pid
    linux.session.kill(crashed)
    wait_until(lambda: linux.pid not in (0, crashed) and linux.serves(), "it is not started again")
    assert linux.chat() == 200
    assert linux.show("NRestarts") == {"NRestarts": "1"}

    upgrade(linux.bin, "9.9.9")
    assert "version 9.9.9 is installed" in linux.status()["problems"][0]
    code, told = linux.service("restart")
    assert code == 0 and "version 9.9.9" in told
    assert linux.status()["problems"] == []

    code, told = linux.service("uninstall")
    assert code == 0, told
    assert linux.show("LoadState") == {"LoadState": "not-found"}
    assert not linux.serves()
    assert (linux.home / "config.toml").exists() and (linux.home / "logs" / "supervisor.log").exists()


def test_a_broken_configuration_is_not_tried_again(linux: Linux) -> None:
    linux.service("install", "--port", str(linux.port))
    linux.configure("[server]\nhots = 1\n")
    linux.session.kill(linux.pid)
    wait_until(lambda: linux.show("ActiveState")["ActiveState"] == "failed", "it goes on")
    time.sleep(6)  # a measuring time: longer than RestartSec
    shown = linux.show("ActiveState", "NRestarts", "ExecMainStatus")
    assert shown == {"ActiveState": "failed", "NRestarts": "1", "ExecMainStatus": "78"}
    status = linux.status()
    assert "config.toml:2: server.hots" in status["problems"][0]
    code, told = linux.service("start")
    assert code == 1 and "config.toml:2" in told
    linux.configure(linux.config)
    code, told = linux.service("start")
    assert code == 0, told
    assert linux.chat() == 200


def test_a_port_that_is_taken_at_the_login_is_tried_again(linux: Linux) -> None:
    linux.service("install", "--port", str(linux.port))
    linux.service("stop")
    with socket.create_server(("127.0.0.1", linux.port)):
        code, told = linux.service("start")
        assert code == 1 and f"port {linux.port}" in told and "by itself" in told
        assert "can't start yet" in linux.status()["problems"][0]
    wait_until(linux.serves, "it is not tried again")
    assert linux.status()["problems"] == []


def test_a_hung_event_loop_is_started_again(linux: Linux) -> None:
    """SIGSTOP: nothing is told any more, and the watchdog acts."""
    linux.service("install", "--port", str(linux.port))
    text = (linux.session.user_home / ".config/systemd/user" / UNIT).read_text()
    (linux.session.user_home / ".config/systemd/user" / UNIT).write_text(
        text.replace("WatchdogSec=30", "WatchdogSec=2").replace("RestartSec=5", "RestartSec=1")
    )
    linux.session.run("systemctl", "--user", "daemon-reload")
    linux.session.run("systemctl", "--user", "restart", UNIT)
    hung = linux.pid
    time.sleep(3)  # a measuring time: it lives because it says so
    assert linux.pid == hung and linux.serves()
    linux.session.kill(hung, 19)
    wait_until(lambda: linux.pid not in (0, hung) and linux.serves(), "nobody noticed")

"""The real program as a LaunchAgent: installed, crashed, misconfigured, logged out, rebooted, upgraded.

launchd is played by `tests.fixtures.launchd`, which reads the very file that `service install` wrote; the
only other stand-ins are the workers.
"""

import itertools
import os
import plistlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shared import __version__
from supervisor.system.launchd import LABEL
from supervisor.system.managed import read_refusal
from tests.fixtures.harness import chat_body, wait_until
from tests.fixtures.installed import environment_of, folder_of, limits_of, upgrade
from tests.fixtures.mac import Mac, Stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(180),  # a dozen starts of Python each
]


@pytest.fixture
def mac() -> Iterator[Mac]:
    # Sockets lie in the state folder only where its path is short, as a user's is.
    with tempfile.TemporaryDirectory(prefix="mac-", dir="/tmp") as name:
        mac = Mac(Path(name))
        yield mac
        mac.close()


def test_a_newcomers_path(mac: Mac) -> None:
    """Install, boot, chat, crash, reboot, upgrade notice, uninstall."""
    plan = mac.service("install", "--port", str(mac.port), "--dry-run")
    assert plan.returncode == 0, plan.stderr
    assert "launchctl bootstrap" in plan.stdout and "<key>KeepAlive</key>" in plan.stdout
    assert not mac.session.agents.exists(), "a dry run writes nothing"

    assert f"serving on http://127.0.0.1:{mac.port}/v1" in mac.install()
    assert mac.chat() == 200
    status = mac.service("status")
    assert status.returncode == 0
    assert f"url:     http://127.0.0.1:{mac.port}/v1" in status.stdout and "problem" not in status.stdout

    crashed = mac.pid
    os.kill(crashed, signal.SIGKILL)
    wait_until(lambda: mac.session.job(LABEL).pid not in (None, crashed), "it is not started again")
    mac.wait_until_it_serves()
    assert mac.chat() == 200

    kept, measured = mac.ask_and_keep(), mac.footprints()
    assert measured
    mac.session.logout()
    assert not mac.processes()
    # Larger than the next worker will be, so that it can only be known from before the reboot.
    mac.state("UPDATE footprints SET bytes = 2 * bytes")
    mac.session.login()
    mac.wait_until_it_serves()
    assert mac.client.get(f"/v1/responses/{kept}").json()["status"] == "completed"
    assert mac.chat() == 200
    (worker,) = mac.client.get("/engine").json()["workers"]
    assert worker["measured_bytes"] == 2 * measured[0][2]

    upgrade(mac.bin, "9.9.9")
    told = mac.service("status")
    assert told.returncode == 0
    assert f"version {__version__} runs, version 9.9.9 is installed" in told.stdout
    assert "mlx-supervisor service restart" in told.stdout
    assert "this is version 9.9.9, another one runs" in mac.run("status", "--home", str(mac.home)).stdout
    assert "version 9.9.9" in mac.service("restart").stdout
    assert mac.service("status").stdout.count("problem") == 0
    assert mac.chat() == 200

    gone = mac.service("uninstall")
    assert gone.returncode == 0 and "models, settings and history are left" in gone.stdout
    assert not mac.processes()
    assert list(mac.session.agents.iterdir()) == []
    assert (mac.home / "config.toml").exists() and (mac.home / "logs" / "supervisor.log").exists()
    assert mac.models.is_dir() and mac.kept_responses() == [kept]
    assert mac.footprints()
    assert "nothing was installed" in mac.service("uninstall").stdout
    assert mac.service("status").returncode == 1


def test_it_lives_in_what_launchd_gives_it(mac: Mac) -> None:
    """No shell environment, 256 descriptors, another working directory; and no secret in the file."""
    mac.install(
        HF_HOME="/models/hub", HF_TOKEN="hf_secret", MLX_SUPERVISOR_SERVER_FALLBACK_MODEL="a", EDITOR="ed"
    )
    soft, _ = limits_of(mac.pid)
    assert soft > 256
    environ = environment_of(mac.pid)
    assert environ["HF_HOME"] == "/models/hub"
    assert environ["HOME"] == str(mac.user_home)
    assert "EDITOR" not in environ and "HF_TOKEN" not in environ
    assert b"hf_secret" not in next(mac.session.agents.iterdir()).read_bytes()
    assert folder_of(mac.pid) == str(mac.home)
    assert os.getpgid(mac.pid) == mac.pid
    assert mac.chat() == 200
    # The settings of the shell that installed it hold in the service.
    asked = chat_body("nobody-knows", "Hello")
    assert mac.client.post("/v1/chat/completions", json=asked).status_code == 200
    # One process group: launchd ends all of it.
    assert all(os.getpgid(worker.pid) == mac.pid for worker in mac.workers())


def test_it_runs_from_the_root_folder_too(mac: Mac) -> None:
    """Whoever wrote the file by hand may have left out WorkingDirectory."""
    mac.install()
    mac.service("stop")
    path = next(mac.session.agents.iterdir())
    content = plistlib.loads(path.read_bytes())
    del content["WorkingDirectory"]
    path.write_bytes(plistlib.dumps(content))
    mac.session.login()
    mac.wait_until_it_serves()
    assert folder_of(mac.pid) == "/"
    assert mac.chat() == 200


def test_a_crash_takes_its_workers_along_and_is_started_again(mac: Mac) -> None:
    mac.install()
    assert mac.chat() == 200
    crashed, workers = mac.pid, mac.workers()
    assert workers
    os.kill(crashed, signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, 2)
    assert not alive
    mac.wait_until_it_serves()
    assert mac.pid != crashed
    assert mac.chat() == 200
    assert "signal 9" in str(mac.status()["last_exit"])


def test_crashes_are_kept_apart(mac: Mac) -> None:
    mac.install()
    for _ in range(2):
        pid = mac.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: mac.session.job(LABEL).pid not in (None, pid), "it is not started again")
    starts = mac.session.job(LABEL).starts
    assert len(starts) == 3
    assert all(later - before >= 0.99 for before, later in itertools.pairwise(starts))


def test_a_broken_configuration_is_refused_before_anything_is_installed(mac: Mac) -> None:
    mac.configure('[server]\nport = "many"\n')
    done = mac.service("install")
    assert done.returncode == 1
    assert "config.toml:2: server.port" in done.stderr
    assert not mac.session.agents.exists() and not mac.session.calls


def test_a_configuration_that_breaks_later_makes_no_storm_of_starts(mac: Mac) -> None:
    mac.install()
    good = (mac.home / "config.toml").read_text()
    mac.configure("[server]\nhots = 1\n")
    os.kill(mac.pid, signal.SIGKILL)
    wait_until(lambda: read_refusal(mac.home) is not None, "no refusal")
    job = mac.session.job(LABEL)
    wait_until(lambda: job.pid is None, "it goes on")
    time.sleep(3 * job.throttle_s)  # a measuring time, not a wait
    assert job.runs == 2 and job.last == ("exit", 0)
    status = mac.service("status")
    assert status.returncode == 1
    assert "it refused to start" in status.stdout and "config.toml:2: server.hots" in status.stdout
    assert "mlx-supervisor service start" in status.stdout
    assert mac.log().count("refused to start") == 1
    # Trying without mending it says the same, and does not hang.
    again = mac.service("start")
    assert again.returncode == 1 and "config.toml:2" in again.stderr
    mac.configure(good)
    assert mac.service("start").returncode == 0
    assert mac.chat() == 200
    assert "problem" not in mac.service("status").stdout


def test_a_service_file_of_another_version_makes_no_storm_either(mac: Mac) -> None:
    """An option that this version does not know would be wrong usage, with exit code 2."""
    mac.install()
    mac.service("stop")
    path = next(mac.session.agents.iterdir())
    content = plistlib.loads(path.read_bytes())
    content["ProgramArguments"] += ["--spark", "5"]
    path.write_bytes(plistlib.dumps(content))
    mac.session.login()
    job = mac.session.job(LABEL)
    wait_until(lambda: job.last is not None, "it goes on")
    assert job.last == ("exit", 0)
    told = mac.service("status").stdout
    assert "--spark 5" in told and "mlx-supervisor service install" in told
    mac.install()
    assert mac.chat() == 200


def test_a_taken_port_is_named_before_anything_is_installed(mac: Mac) -> None:
    with socket.create_server(("127.0.0.1", mac.port)):
        done = mac.service("install", "--port", str(mac.port))
    assert done.returncode == 1
    assert f"port {mac.port}" in done.stderr and f"pid {os.getpid()}" in done.stderr
    assert not mac.session.agents.exists()


def test_a_port_that_is_taken_at_the_login_is_waited_for(mac: Mac) -> None:
    mac.install()
    mac.session.logout()
    with socket.create_server(("127.0.0.1", mac.port)):
        mac.session.login()
        wait_until(lambda: read_refusal(mac.home) is not None, "no refusal")
        status = mac.service("status")
        assert status.returncode == 1
        assert "can't start yet" in status.stdout and f"pid {os.getpid()}" in status.stdout
        job = mac.session.job(LABEL)
        runs = job.runs
        time.sleep(4)  # a measuring time, not a wait
        # It waits RETRY_S (1 s here) before each end, and the throttle holds besides.
        assert job.runs - runs <= 4
    mac.wait_until_it_serves()
    assert mac.chat() == 200
    assert "problem" not in mac.service("status").stdout


def test_another_supervisor_on_the_state_folder_is_named(mac: Mac) -> None:
    by_hand = subprocess.Popen(
        [mac.program, "start", "--home", mac.home, "--port", "0"],
        env={"HOME": str(mac.user_home), "PATH": "/usr/bin:/bin", "MLX_TEST_MARK": mac.mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until((mac.home / "run" / "control.sock").exists, "it does not start")
        done = mac.service("install", "--port", str(mac.port))
        assert done.returncode == 1
        assert f"another supervisor (pid {by_hand.pid}, version {__version__})" in done.stderr
        assert not mac.session.agents.exists()
        told = mac.service("status").stdout
        assert "started by hand" in told
    finally:
        by_hand.terminate()
        by_hand.wait(20)


def test_a_logout_gives_open_streams_their_time(mac: Mac) -> None:
    """Those that end in time are whole, the others end with an error; nothing had to be killed."""
    mac.configure('[watch]\ndrain = "2s"\n' + (mac.home / "config.toml").read_text())
    mac.install()
    short = [Stream(mac, chunks=20, interval_ms=50) for _ in range(5)]
    endless = [Stream(mac, chunks=100_000, interval_ms=20) for _ in range(3)]
    for stream in (*short, *endless):
        assert stream.began.wait(10)
    assert mac.session.logout() < 15
    assert all(stream.join()[-1] == "[DONE]" for stream in short)
    for stream in endless:
        assert stream.failed is None
        assert stream.join()[-1]["error"]["code"] == "engine_unavailable"
    assert mac.session.killed == []
    assert not mac.processes()


def test_the_stop_fits_into_the_five_seconds_of_a_current_system(tmp_path: Path) -> None:
    """The drain time is 10 s by default; launchd would kill everything in the middle of it."""
    mac = Mac(tmp_path, exit_timeout_s=5.0)
    try:
        mac.install()
        assert "launchd kills 5 s after it says stop" in mac.log()
        stream = Stream(mac, chunks=100_000, interval_ms=20)
        assert stream.began.wait(10)
        assert mac.session.logout() < 5
        assert stream.join()[-1]["error"]["code"] == "engine_unavailable"
        assert mac.session.killed == []
    finally:
        mac.close()


def test_after_a_power_cut_everything_is_where_it_was(mac: Mac) -> None:
    mac.install()
    assert mac.chat() == 200
    (mac.home / "state.db").touch()
    before = {path.name for path in mac.home.iterdir()}
    mac.session.cut_power()
    assert not mac.processes()
    mac.session.login()
    mac.wait_until_it_serves()
    assert mac.chat() == 200
    assert {path.name for path in mac.home.iterdir()} >= before
    logged = mac.service("logs", "-n", "200")
    assert logged.returncode == 0
    assert logged.stdout.count("supervisor.starting") == 2


def test_stop_by_the_ordinary_verb_is_not_undone(mac: Mac) -> None:
    mac.install()
    done = subprocess.run(
        [mac.program, "stop", "--home", mac.home], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    job = mac.session.job(LABEL)
    time.sleep(2 * job.throttle_s)  # a measuring time, not a wait
    assert job.pid is None and job.runs == 1
    assert "does not run" in mac.service("status").stdout
    assert mac.service("start").returncode == 0


def test_over_ssh_without_a_session_it_says_so(mac: Mac) -> None:
    mac.session.has_screen = False
    done = mac.service("install", "--port", str(mac.port))
    assert done.returncode == 1
    assert "no login session" in done.stderr
    assert not mac.session.agents.exists()

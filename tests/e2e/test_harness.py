"""What the tests themselves leave behind when they are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.home import Home
from tests.fixtures import nursery
from tests.fixtures.harness import CLI, wait_until
from tests.fixtures.nursery import ROOT

_HOLDER = """
import signal, sys
from pathlib import Path
from tests.fixtures.harness import Service
with Service(Path(sys.argv[1]), fake=True, fresh=True, arguments=("--no-spare",)) as service:
    print(service.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["ps", "--home", "/nowhere"], 1), (["nonsense"], 2)]
)
def test_what_comes_with_its_imports_done_does_what_is_started_as_usual(words: list[str], code: int) -> None:
    started = subprocess.run([*CLI, *words], capture_output=True, text=True, cwd=ROOT)
    forked = nursery.run("supervisor", *words)
    assert started.returncode == code
    assert (forked.returncode, forked.stdout, forked.stderr) == (code, started.stdout, started.stderr)


def test_the_end_of_a_program_by_a_signal_is_told(tmp_path: Path) -> None:
    arguments = ["logs", "--follow", "--home", str(Home.open(tmp_path / "home").path)]
    program = nursery.launch("supervisor", arguments)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    assert program.poll() is None
    program.kill()
    assert program.communicate(10)[0] == program.wait() == program.poll() == -signal.SIGKILL
    assert not psutil.pid_exists(program.pid)


def test_a_killed_run_takes_its_supervisor_along(tmp_path: Path) -> None:
    """A benchmark that was ended left a supervisor, which took a core from the next one."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "home")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        supervisor = psutil.Process(int(holder.stdout.readline()))
        assert supervisor.is_running()
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)

    def is_over() -> bool:
        try:
            return supervisor.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(is_over, "the supervisor still runs")

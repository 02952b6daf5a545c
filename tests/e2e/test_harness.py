"""What the tests themselves leave behind when they are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.fixtures.harness import ROOT, wait_until

_HOLDER = """
import signal, sys
from pathlib import Path
from tests.fixtures.harness import Service
with Service(Path(sys.argv[1]), fake=True, arguments=("--no-spare",)) as service:
    print(service.pid, flush=True)
    signal.pause()
"""


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

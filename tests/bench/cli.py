"""What a verb costs before it does anything: CPU over that of a Python that does nothing.

CPU, and the least of a few runs, because other work on the machine hardly touches either.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench.report import Row, row
from tests.fixtures.harness import CLI, Service
from tests.fixtures.models import models_config, write_fake_model

_RUNS: Final = 5
"""Of each group, whose least counts."""
_PROGRAM: Final = str(Path(sys.executable).with_name("mlx-supervisor"))
"""The console script: `python -m` would import `runpy` besides."""


def measure(*, quick: bool) -> list[Row]:
    """Groups of the verbs alternate with the yardstick."""
    groups = 1 if quick else 4
    yardstick: list[float] = []
    typer: list[float] = []
    with tempfile.TemporaryDirectory() as base:
        config = models_config(a=write_fake_model(Path(base) / "model")) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", fake=True, fresh=True, config=config) as service:
            home = str(service.home)
            assert service.chat("a").status_code == 200
            verbs = {
                "--help": (["--help"], 150),
                "ps --help": (["ps", "--help"], 150),
                "service install --help": (["service", "install", "--help"], 150),
                "ps": (["ps", "--home", home], 200),
                "list": (["list", "--home", home], 200),
            }
            taken: dict[str, list[float]] = {name: [] for name in verbs}
            for _ in range(groups):
                nothing = _least([CLI[0], "-c", "pass"])
                yardstick.append(nothing)
                typer.append(_least([CLI[0], "-c", "import typer"]) - nothing)
                for name, (arguments, _) in verbs.items():
                    taken[name].append(_least([_PROGRAM, *arguments]) - nothing)
    return [
        row("python -c pass", "ms", yardstick),
        row("import typer, over that", "ms", typer),
        *(row(f"{name}, over that", "ms", taken[name], goal=f"< {verbs[name][1]} ms") for name in verbs),
    ]


def _least(command: Sequence[str]) -> float:
    """Milliseconds of CPU of the fastest of a few runs."""
    return min(_cpu_ms(command) for _ in range(_RUNS))


def _cpu_ms(command: Sequence[str]) -> float:
    # Nothing may be compiled anew: a user's program is compiled once.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environ
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)

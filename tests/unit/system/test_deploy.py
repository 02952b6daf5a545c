"""What lies in deploy/ says the same as the code."""

import hashlib
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.system.job import Job
from supervisor.system.launchd import LABEL, property_list
from supervisor.system.userunit import UNIT, unit

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


def test_the_property_list_is_what_install_writes() -> None:
    home = Path("/Users/you/.mlx-supervisor")
    job = Job(
        (
            *("/Users/you/.local/bin/mlx-supervisor", "service", "run", "--manager", "launchd"),
            *("--home", str(home)),
        ),
        {"HOME": "/Users/you", "PATH": "/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
        home,
    )
    assert plistlib.loads((DEPLOY / f"{LABEL}.plist").read_bytes()) == property_list(job)


def test_the_unit_is_what_install_writes() -> None:
    home = Path("/home/you/.mlx-supervisor")
    job = Job(
        (
            *("/home/you/.local/bin/mlx-supervisor", "service", "run", "--manager", "systemd"),
            *("--home", str(home)),
        ),
        {"HOME": "/home/you", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
        home,
    )
    text = (DEPLOY / UNIT).read_text()
    assert text.partition("\n\n")[2] == unit(job)


@pytest.fixture
def formula(tmp_path: Path) -> Path:
    archive = tmp_path / "mlx_supervisor-0.1.0.tar.gz"
    archive.write_bytes(b"an archive")
    url = "https://downloads.example/mlx_supervisor-0.1.0.tar.gz"
    made = subprocess.run(
        [sys.executable, DEPLOY / "homebrew" / "formula.py", "https://example.com", url, archive],
        capture_output=True,
        text=True,
        check=True,
    )
    path = tmp_path / "mlx-supervisor.rb"
    path.write_text(made.stdout)
    return path


def test_the_formula_is_complete(formula: Path) -> None:
    text = formula.read_text()
    assert not re.search(r"@[A-Z0-9]+@", text)
    assert f'  sha256 "{hashlib.sha256(b"an archive").hexdigest()}"' in text.splitlines()
    for line in (
        'run [opt_bin/"mlx-supervisor", "service", "run"]',
        "keep_alive successful_exit: false",
        "process_type :interactive",
        "environment_variables PATH: std_service_path_env",
    ):
        assert line in text


@pytest.mark.skipif(shutil.which("ruby") is None, reason="no Ruby here")
def test_the_formula_is_valid_ruby(formula: Path) -> None:
    subprocess.run(["ruby", "-c", formula], check=True, capture_output=True)


@pytest.mark.parametrize("page", ["macos.md", "linux.md"])
def test_every_verb_that_a_page_names_exists(page: str) -> None:
    from supervisor.cli.service import app

    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    named = set(re.findall(r"mlx-supervisor service (\w+)", (DEPLOY / page).read_text()))
    assert named and named <= known

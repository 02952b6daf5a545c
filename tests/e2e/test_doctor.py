"""`doctor` as a person types it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.home import Home
from tests.fixtures import nursery
from tests.fixtures.harness import Service
from tests.fixtures.models import write_fake_model
from tests.fixtures.tiny import tiny_model

CHECKS = {
    "version",
    "python",
    "memory",
    "descriptors",
    "state folder",
    "supervisor",
    "settings",
    "port",
    "disk",
}


def doctor(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"HF_HUB_CACHE": f"{home}-cache"} | environ
    return nursery.run("supervisor", "doctor", "--home", str(home), *arguments, env=environ)


def test_beside_a_running_supervisor_and_after_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    write_fake_model(home / "models" / "one")
    (home / "models").chmod(0o700)
    with Service(home, fake=True) as service:
        ran = doctor(home, "--quick", "--json")
        assert (ran.returncode, ran.stderr) == (0, "")
        told = json.loads(ran.stdout)
        found = {item["check"]: item for item in told["findings"]}
        assert told["ok"] is True
        assert set(found) >= CHECKS
        assert f"pid {service.pid}" in found["supervisor"]["says"]
        assert found["port"]["says"].endswith("is held by the running supervisor")
        assert not any(item["status"] == "fail" for item in told["findings"])
    (home / "config.toml").write_text("[server]\nprot = 1\n")
    ran = doctor(home, "--quick")
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "fail  settings" in ran.stdout
    assert "mend: edit" in ran.stdout
    assert "\x1b" not in ran.stdout
    home.chmod(0o755)
    ran = doctor(home, "--quick")
    assert ran.returncode == 1
    assert f"mend: chmod 700 {home}" in ran.stdout


@pytest.mark.slow
def test_a_real_worker_is_tried(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Home.open(home)
    (home / "models" / "tiny").symlink_to(tiny_model())
    ran = doctor(home, "--json", HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stdout
    found = {item["check"]: item for item in json.loads(ran.stdout)["findings"]}
    assert found["worker"]["says"].startswith("tiny generated a token, after ")
    assert "mlx-lm" in found["mlx"]["says"]
    assert found["hub"]["says"] == "not asked: HF_HUB_OFFLINE is set"

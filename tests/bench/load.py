"""The first request to a model that is not loaded, with a spare worker waiting and without one."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.nursery import ROOT
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import tiny_model

_MODELS: dict[str, Callable[[], Path]] = {"tiny": tiny_model, "smollm2-135m": starter_model}


def measure(*, quick: bool) -> list[Row]:
    """Rounds with and without a spare alternate; each begins with the model unloaded."""
    rounds = 2 if quick else 6
    imports = [_import_s() for _ in range(rounds)]
    rows = [row("importing what a worker needs", "s", imports)]
    config = models_config(**{name: folder() for name, folder in _MODELS.items()})
    with tempfile.TemporaryDirectory() as base:
        spared = Service(Path(base) / "spared", config=config)
        bare = Service(Path(base) / "bare", config=config, arguments=("--no-spare",))
        with spared, bare:
            for model in _MODELS:
                with_spare: list[float] = []
                without: list[float] = []
                for _ in range(rounds):
                    without.append(_first_request(bare, model))
                    with_spare.append(_first_request(spared, model))
                saved = [a - b for a, b in zip(without, with_spare, strict=True)]
                rows += [
                    row(f"{model}: first request, spare against none", "s", with_spare, without),
                    row(f"{model}: what the spare saves", "s", saved, goal=">= the import time"),
                ]
    return rows


def _import_s() -> float:
    code = "from worker.__main__ import import_engine; print(import_engine())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _first_request(service: Service, model: str) -> float:
    service.client.post(f"/api/models/{model}/unload").raise_for_status()
    wait_for_quiet(service)
    started = time.perf_counter()
    service.chat(model, max_tokens=1, temperature=0).raise_for_status()
    return time.perf_counter() - started


def wait_for_quiet(service: Service) -> None:
    """Until no process of the service uses the CPU: the spare has imported everything by then."""
    quiet_since = time.monotonic()
    last = 0.0
    while time.monotonic() - quiet_since < 1.0:
        used = sum(_cpu_s(process) for process in service.processes())
        if used > last + 0.05:
            quiet_since = time.monotonic()
        last = used
        time.sleep(0.1)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system

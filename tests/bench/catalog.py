"""The catalog over two thousand models, half of them ours and half in the hub's cache."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from supervisor.catalog.catalog import Catalog
from supervisor.catalog.costs import Costs
from supervisor.catalog.machine import detect
from supervisor.home import Home
from supervisor.settings import Settings
from tests.bench.report import Row, row
from tests.fixtures.models import write_fake_model

MODELS = 2000
LOOK_UPS = 10_000
_COMMIT = "0123456789abcdef"
_SETTLED_S = 0.1
"""What was written a moment ago may still change within a tick of the clock, and is looked at again."""


def measure(*, quick: bool) -> list[Row]:
    """Cold scans are of the same disk, whose pages the system has in memory."""
    rounds = 3 if quick else 10
    cold: list[float] = []
    warm: list[float] = []
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as base:
        home, environ = _disk(Path(base))
        time.sleep(_SETTLED_S)
        for _ in range(rounds):
            started = time.perf_counter()
            catalog = Catalog(home, Settings(), environ)
            cold.append(time.perf_counter() - started)
            entries = catalog.entries()
            if len(entries) != MODELS or any(entry.problem for entry in entries):
                raise RuntimeError("the catalog did not find every model")
            started = time.perf_counter()
            catalog.refresh()
            warm.append(time.perf_counter() - started)
            known = Costs(detect())
            few = entries[:10]
            for entry in few:
                known.cost(entry)
            started = time.perf_counter()
            for number in range(LOOK_UPS):
                known.cost(few[number % len(few)])
            costs.append(time.perf_counter() - started)
    return [
        row(f"{MODELS} models, looked at for the first time", "s", cold, goal="< 1 s"),
        row(f"{MODELS} models, nothing changed", "s", warm, goal="< 0.05 s"),
        row(f"{LOOK_UPS} costs", "s", costs),
    ]


def _disk(base: Path) -> tuple[Home, dict[str, str]]:
    home = Home.open(base / "home")
    contents = {path.name: path.read_bytes() for path in write_fake_model(base / "template").iterdir()}
    for folder in _folders(home, base / "hub"):
        folder.mkdir(parents=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return home, {"HF_HUB_CACHE": str(base / "hub"), "HOME": str(base)}


def _folders(home: Home, hub: Path) -> Iterator[Path]:
    for number in range(MODELS // 2):
        organisation = f"org{number % 20}"
        yield home.models / organisation / f"own{number}"
        repository = hub / f"models--{organisation}--cached{number}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(_COMMIT)
        yield repository / "snapshots" / _COMMIT

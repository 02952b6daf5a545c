"""Ten models loaded, a Prometheus that scrapes, somebody who follows the events: what that costs."""

import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config, write_fake_model

_MODELS: Final = 10
_EVERY_S: Final = 15.0


def measure(*, quick: bool) -> list[Row]:
    """The models are fake workers: only the supervisor is measured."""
    scrapes, watched_s = (20, 15.0) if quick else (100, 60.0)
    with tempfile.TemporaryDirectory() as base:
        folder = write_fake_model(Path(base) / "model")
        names = [f"m{number}" for number in range(_MODELS)]
        config = models_config(**dict.fromkeys(names, folder)) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", fake=True, fresh=True, config=config) as service:
            for name in names:
                service.chat(name).raise_for_status()
            _scrape(service)  # the first one imports
            answered: list[float] = []
            cpu: list[float] = []
            for _ in range(scrapes):
                before, started = _cpu_s(service.pid), time.perf_counter()
                _scrape(service)
                answered.append(1000 * (time.perf_counter() - started))
                cpu.append(1000 * (_cpu_s(service.pid) - before))
            mean_cpu = [sum(cpu) / len(cpu)]  # one is less than a tick of the clock
            idle = [_idle_percent(service, watched_s)]
    return [
        row(f"a scrape with {_MODELS} models", "ms", answered, goal="< 10 ms"),
        row("CPU of a scrape", "ms", mean_cpu),
        row("CPU when idle, scraped every 15 s, events followed", "%", idle, goal="0 %"),
    ]


def _scrape(service: Service) -> None:
    service.client.get("/metrics").raise_for_status()


def _idle_percent(service: Service, watched_s: float) -> float:
    """Percent of one core that the supervisor uses while nobody asks for anything else."""
    with service.client.stream("GET", "/events") as events:
        next(events.iter_raw())  # the rest, a ping now and then, lies in the socket's buffer
        time.sleep(5)  # what follows the loads is over
        before, started = _cpu_s(service.pid), time.monotonic()
        while time.monotonic() - started < watched_s:
            _scrape(service)
            time.sleep(min(_EVERY_S, watched_s))
        used = _cpu_s(service.pid) - before
        return 100 * used / (time.monotonic() - started)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system

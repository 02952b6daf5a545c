"""Everything that the doctor looks at, in order: the program, what it needs, and then a real worker."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.machine import detect
from supervisor.catalog.places import hub_cache
from supervisor.doctor.finding import Finding, fail
from supervisor.doctor.outside import check_hub, check_port, check_service
from supervisor.doctor.program import (
    check_blas,
    check_descriptors,
    check_memory,
    check_mlx,
    check_python,
    check_version,
)
from supervisor.doctor.selftest import check_worker
from supervisor.doctor.state import (
    check_disk,
    check_garbage,
    check_home,
    check_lock,
    check_logs,
    check_models,
    check_settings,
    check_stale,
)
from supervisor.home import HomeError
from supervisor.system.service import Running
from supervisor.system.service import Status as ServiceStatus


class Examination(msgspec.Struct, frozen=True):
    """`doctor --json`."""

    ok: bool
    """Whether nothing failed."""
    findings: tuple[Finding, ...]


def examine(
    home_path: Path,
    *,
    probe: Callable[[Path], Running | None],
    service: Callable[[], ServiceStatus],
    quick: bool = False,
) -> Iterator[Finding]:
    """Each finding as it comes. `probe` tells who serves with a state folder. `quick` leaves out what takes
    seconds: mlx, the hub and the worker."""
    running = probe(home_path)
    yield check_version(running)
    yield check_python()
    facts = None
    if not quick:
        finding, facts = check_mlx()
        yield finding
    machine = detect(working_set_bytes=facts.working_set_bytes if facts else 0)
    findings, settings = check_settings(home_path / "config.toml")
    yield check_memory(machine, settings.memory.budget)
    if (blas := check_blas(facts)) is not None:
        yield blas
    yield check_descriptors()
    finding, home = check_home(home_path)
    yield finding
    try:
        holder = home.holder() if home else None
    except HomeError as error:
        holder = None
        yield fail("supervisor", str(error), "nobody can tell whether one runs")
    yield check_lock(holder, running)
    if home is not None:
        yield check_stale(home, holder)
        yield check_logs(home, running)
    yield from findings
    yield check_port(settings.server, running)
    yield from check_disk(
        [("the state folder", home_path), ("the Hugging Face cache", hub_cache(os.environ))]
    )
    usable: list[ModelEntry] = []
    if home is not None:
        finding, usable = check_models(home, settings)
        yield finding
        yield check_garbage(home, settings)
    yield from check_service(service)
    if not quick:
        yield check_hub()
        yield check_worker(usable, int(psutil.virtual_memory().available))


def summary(findings: Sequence[Finding]) -> str:
    """What it comes to, in one line."""
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    if not failed and not warned:
        return "all is well"
    counts = [
        f"{number} {word}{'s' if number != 1 else ''}"
        for number, word in ((failed, "failure"), (warned, "warning"))
        if number
    ]
    return " and ".join(counts)

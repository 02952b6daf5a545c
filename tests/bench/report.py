"""What a benchmark measured, as rows: the same for the table that is printed and for the JSON file."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from shared import __version__


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ours, and what it is held against.

    `samples` are the single rounds; `value` is their median. `reference` is the same quantity measured in
    the same run without our code, interleaved with ours; `ratio` is value / reference. `goal` is in words.
    """

    what: str
    unit: str
    value: float
    samples: tuple[float, ...] = ()
    reference: float | None = None
    reference_samples: tuple[float, ...] = ()
    ratio: float | None = None
    goal: str = ""


def row(
    what: str, unit: str, ours: Sequence[float], reference: Sequence[float] = (), *, goal: str = ""
) -> Row:
    """The row of these rounds. With a reference of as many rounds, the ratio is the median round's.

    Noise of the machine that lasts longer than a round touches both sides of one round alike, so the ratio
    within a round is steadier than the ratio of the medians.
    """
    ratio = None
    if reference:
        ratio = statistics.median(a / b for a, b in zip(ours, reference, strict=True))
    return Row(
        what=what,
        unit=unit,
        value=statistics.median(ours),
        samples=tuple(ours),
        reference=statistics.median(reference) if reference else None,
        reference_samples=tuple(reference),
        ratio=ratio,
        goal=goal,
    )


class Report(msgspec.Struct, frozen=True):
    """`build/bench.json`."""

    version: str
    machine: dict[str, str | int | float]
    parts: dict[str, list[Row]]


def machine() -> dict[str, str | int | float]:
    """The facts without which the numbers say nothing."""
    packages = {name: version(name) for name in ("mlx", "mlx-lm", "uvicorn", "uvloop")}
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
        "load_average_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        **packages,
    }


def print_part(name: str, rows: Sequence[Row]) -> None:
    """A table for people."""
    header = ("", "ours", "reference", "ratio", "goal")
    lines = [
        (
            f"{row.what}, {row.unit}" if row.unit else row.what,
            _number(row.value),
            "" if row.reference is None else _number(row.reference),
            "" if row.ratio is None else f"{row.ratio:.3f}",
            row.goal,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    print(f"\n{name}")
    for line in (header, *lines):
        cells = [
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def write_report(path: Path, facts: dict[str, str | int | float], parts: dict[str, list[Row]]) -> None:
    report = Report(__version__, facts, parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(msgspec.to_builtins(report), indent=2) + "\n")

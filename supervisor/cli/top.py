"""A live view of the terminal: models, memory, requests, what waits."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shared.sizes import format_duration, format_size
from supervisor.cli.errors import NotRunningError
from supervisor.cli.models import asking, leased, queued
from supervisor.cli.options import HomeOption, supervisor_of
from supervisor.cli.terminal import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

_REQUESTS: Final = 15
"""Requests that are listed; the others are counted."""
_BAR: Final = 30
_WIDE: Final = 1000
"""Columns where nobody says how many there are: enough that nothing is cut."""


@dataclass
class _Rates:
    """Tokens per second, from what each worker has generated in all at two looks."""

    seen: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)

    def of(self, worker: dict[str, Any], now: float) -> float | None:
        """None at the first look at a worker, and of one that tells nothing."""
        admission = worker["admission"]
        if admission is None:
            return None
        key = (worker["id"], admission["generation"])
        before = self.seen.get(key)
        self.seen[key] = (now, admission["tokens"])
        if before is None or now <= before[0]:
            return None
        return max(0.0, float(admission["tokens"] - before[1]) / (now - before[0]))


def top(
    home: HomeOption = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, max=3600, help="Between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, and end.")] = False,
) -> None:
    """Watch the models, their memory, and the requests under way. Ctrl-C ends it.

    Without a terminal, as in a pipe, it prints what there is once, as with --once.

    \b
    Example:
      mlx-supervisor top
    """
    from rich.console import Console
    from rich.live import Live

    client = supervisor_of(home)
    rates = _Rates()

    def look() -> "RenderableType":
        return _page(client.get("/api/status"), client.get("/api/engine"), client.get("/stats"), rates)

    console = Console()
    watched = console.is_terminal and not console.is_dumb_terminal
    if not watched and "COLUMNS" not in os.environ:
        console.width = _WIDE  # names stay whole, for whatever reads them
    page = look()
    if once or not watched:
        time.sleep(interval)
        console.print(look())
        return
    try:
        with Live(page, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except NotRunningError:
        console.print("the supervisor has ended")
        raise typer.Exit(1) from None


def _page(
    status: dict[str, Any], engine: dict[str, Any], stats: dict[str, Any], rates: _Rates
) -> "RenderableType":
    from rich.console import Group

    up = format_duration(stats["server"]["uptime_s"])
    parts: list[RenderableType] = [
        f"{status['url']}  ·  up {up}  ·  {stats['server']['requests']} requests answered",
        *_memory(engine),
        "",
        _models(engine, stats, rates) if engine["workers"] else "no model is loaded",
    ]
    parts += [clean(queued(line)) for line in engine["waiting"]]
    parts += [clean(asking(worker)) for worker in engine["workers"] if worker.get("asks")]
    parts += [clean(leased(lease)) for lease in engine["leases"]]
    if stats["running"]:
        parts += ["", _requests(stats["running"])]
    if len(stats["running"]) > _REQUESTS:
        parts.append(f"and {len(stats['running']) - _REQUESTS} more")
    return Group(*parts)


def _memory(engine: dict[str, Any]) -> list[str]:
    held = sum(worker["footprint_bytes"] for worker in engine["workers"])
    budget = (engine.get("memory") or {}).get("budget_bytes")
    if not budget:
        return [f"memory  {format_size(held)} held by workers"]
    share = min(1.0, held / budget)
    bar = "█" * round(share * _BAR) + "░" * (_BAR - round(share * _BAR))
    return [f"memory  {bar}  {format_size(held)} of {format_size(budget)} held by workers"]


def _models(engine: dict[str, Any], stats: dict[str, Any], rates: _Rates) -> "RenderableType":
    now = time.monotonic()
    speed = {worker["id"]: rates.of(worker, now) for worker in stats["workers"]}
    generated = {
        worker["id"]: worker["admission"]["tokens"] for worker in stats["workers"] if worker["admission"]
    }
    rows = []
    for worker in engine["workers"]:
        tokens_s = speed.get(worker["id"])
        rows.append(
            (
                worker["id"],
                worker["state"],
                format_size(worker["footprint_bytes"]) if worker["footprint_bytes"] else "-",
                str(worker["in_flight"]),
                str(worker["queued"]),
                "-" if tokens_s is None else f"{tokens_s:.1f}",
                str(generated.get(worker["id"], "-")),
                "-" if worker["idle_s"] is None else format_duration(worker["idle_s"]),
            )
        )
    return _table(("model", "state", "memory", "in flight", "queued", "tok/s", "tokens", "idle"), rows)


def _requests(running: list[dict[str, Any]]) -> "RenderableType":
    rows = []
    for line in running[:_REQUESTS]:
        if "first_token_ms" in line:
            state = "generates"
        elif "prepared_ms" in line:
            state = "reads its prompt"
        elif "placed_ms" in line:
            state = "is with the worker"
        else:
            state = "waits for its turn" if line.get("model_state") == "ready" else "waits for its model"
        since = format_duration(max(0.0, time.time() - line["received_at"]))
        rows.append((line["id"], line.get("model", "-"), line["route"], state, since))
    return _table(("request", "model", "route", "state", "since"), rows)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return table

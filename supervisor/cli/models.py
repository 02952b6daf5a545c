"""What is loaded, and what could be: ps, list, load, unload."""

import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from shared.sizes import format_duration, format_size
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.looking import looked_at
from supervisor.cli.options import HomeOption, JsonOption, complete_model, supervisor_of
from supervisor.cli.terminal import Style, clean, say, say_json, say_table

if TYPE_CHECKING:
    from supervisor.cli.client import Client

_PATIENCE_S: Final = 0.5
"""So long a load may wait before it is told what for."""

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model id or alias.", autocompletion=complete_model)
]

_STYLES: dict[str, Style] = {
    "ready": "good",
    "starting": "busy",
    "restarting": "busy",
    "leased": "busy",
    "draining": "busy",
    "stopping": "busy",
    "failed": "bad",
}


_PLACES = {"own": "state folder", "lmstudio": "LM Studio", "hub": "hub cache", "config": "config.toml"}


def ps(home: HomeOption = None, json: JsonOption = False) -> None:
    """Show the models that are loaded, a process each.

    \b
    Example:
      mlx-supervisor ps
    """
    engine = supervisor_of(home).get("/api/engine")
    if json:
        say_json(engine)
        return
    workers = engine["workers"]
    if not workers:
        say("no model is loaded; the first request for one loads it, or: mlx-supervisor load MODEL")
    else:
        say_table(
            _COLUMNS,
            [_row(worker) for worker in workers],
            right=_COLUMNS[3:],
            styles=[_STYLES.get(worker["state"], "") for worker in workers],
        )
    memory = engine["memory"]
    booked, budget = memory["booked_bytes"], memory["budget_bytes"]
    pressure = "" if memory["pressure"] == "normal" else f"; memory pressure: {memory['pressure']}"
    say(f"{format_size(booked)} of {format_size(budget)} are taken{pressure}")
    for lease in engine["leases"]:
        say(leased(lease))
    for waiting in engine["waiting"]:
        say(queued(waiting))
    for worker in workers:
        if worker["asks"]:
            say(asking(worker))
    for worker in workers:
        if worker["state"] == "failed":
            say(f"{worker['id']} is given up: {worker['failure']}; to try again: {_load(worker['id'])}")


def _load(model_id: str) -> str:
    return f"mlx-supervisor load {shlex.quote(model_id)}"


_COLUMNS = (
    *("model", "state", "why", "pid", "holds", "counts", "estimate", "measured"),
    *("running", "waiting", "idle", "restarts"),
)
_WAITS_FOR = {
    "room": "for room",
    "loading": "for it to load",
    "retry": "for another try: its last load was killed for want of memory",
    "pressure": "for the machine to have memory again",
    "lease": "for the end of the lease",
    "leased": "for the end of its lease",
    "unloading": "for its old worker to end",
    "turn": "for its next turn: another model wants its room",
    "busy": "for a place in its batch",
}


def _row(worker: dict[str, Any]) -> tuple[str, ...]:
    why = worker["why"] or "-"
    if why == "idle" and worker["leaves_s"] is not None:
        why = f"idle, leaves in {format_duration(worker['leaves_s'])}"
    return (
        worker["id"],
        worker["state"],
        why,
        str(worker["pid"] or "-"),
        *(
            format_size(worker[name]) if worker[name] else "-"
            for name in ("footprint_bytes", "booked_bytes", "estimate_bytes", "measured_bytes")
        ),
        str(worker["in_flight"]),
        str(worker["queued"]),
        "-" if worker["idle_s"] is None else format_duration(worker["idle_s"]),
        str(worker["restarts"]),
    )


def leased(lease: dict[str, Any]) -> str:
    """Who has the machine, or waits for it."""
    verb = "has the machine" if lease["granted"] else "waits for the machine"
    models = ", without models" if lease["unload"] else ""
    return f"{lease['holder']} {verb}{models}, since {format_duration(lease['since_s'])}"


def asking(worker: dict[str, Any]) -> str:
    """That a row of the worker needs more than it may take, and who has that."""
    asks = worker["asks"]
    held = ", ".join(f"{name} ({format_size(size)})" for name, size in asks["behind"].items())
    more = format_size(max(0, asks["bytes"] - worker["share_bytes"]))
    return (
        f"{worker['id']} waits for {more} more for a long row{f', held by {held}' if held else ''}, "
        f"since {format_duration(asks['since_s'])}"
    )


def queued(waiting: dict[str, Any]) -> str:
    """How many wait for a model, and what for."""
    count = waiting["count"]
    behind = f", behind {', '.join(waiting['behind'])}" if waiting["behind"] else ""
    return (
        f"{count} request{'s' if count != 1 else ''} for {waiting['id']} "
        f"{'wait' if count != 1 else 'waits'} {_WAITS_FOR[waiting['reason']]}{behind}, "
        f"since {format_duration(waiting['oldest_s'])}"
    )


def list_(home: HomeOption = None, json: JsonOption = False) -> None:
    """Show the models on this machine. While no supervisor runs this command looks for them itself.

    \b
    Example:
      mlx-supervisor list
    """
    try:
        models = supervisor_of(home).get("/api/models")
    except NotRunningError as missing:
        models = _list_here(home, missing)
    if json:
        say_json(models)
        return
    if not models["models"]:
        say("no models yet; get one with: mlx-supervisor pull ORG/NAME")
        return
    rows = [
        (
            model["id"],
            "broken" if model["problem"] else model["state"] or "",
            model["architecture"] or "-",
            model["quantization"] or "-",
            format_size(model["weights_bytes"]),
            str(model["context"] or "-"),
            ", ".join(model["capabilities"]) or "-",
            _PLACES.get(model["place"], model["place"]),
            ", ".join([*model["aliases"], *model["also"]]),
        )
        for model in models["models"]
    ]
    say_table(
        ("model", "state", "architecture", "packed", "weights", "context", "can", "from", "aliases"),
        rows,
        right=("weights", "context"),
        styles=[
            "bad" if model["problem"] else _STYLES.get(model["state"] or "", "") for model in models["models"]
        ],
    )
    for model in models["models"]:
        if model["problem"]:
            say(f"{model['id']}: {model['problem']}")
    for problem in models["problems"]:
        say(problem)


def _list_here(home: Path | None, missing: NotRunningError) -> Any:
    import msgspec

    from supervisor.routes.views import models_of

    with looked_at(home, missing) as here:
        return msgspec.to_builtins(models_of(here.catalog, None))


def load(model: ModelArgument, home: HomeOption = None) -> None:
    """Load a model and wait until it is ready. Also wakes one that failed.

    \b
    Example:
      mlx-supervisor load smollm2-135m
    """
    from supervisor.cli.own_lease import refuse_within_lease

    supervisor = supervisor_of(home)
    refuse_within_lease(supervisor)
    done = threading.Event()
    narrator = threading.Thread(target=_narrate, args=(supervisor, model, done), daemon=True)
    narrator.start()
    try:
        loaded = supervisor.act(model, "load")
    finally:
        done.set()
        narrator.join()
    say(f"{loaded['id']} is ready")


def _narrate(supervisor: "Client", model: str, done: threading.Event) -> None:
    """Say on stderr what a load waits for before it begins, each reason once, until it is done."""
    reasons = {"loading"}
    try:
        model_id = supervisor.get(f"/api/models/{quote(model, safe='/')}")["id"]
        while not done.wait(_PATIENCE_S):
            engine = supervisor.get("/api/engine")
            for line in engine["waiting"]:
                if line["id"] != model_id or line["reason"] in reasons:
                    continue
                reasons.add(line["reason"])
                held = [leased(lease) for lease in engine["leases"] if lease["granted"]]
                why = f": {held[0]}" if line["reason"] == "lease" and held else ""
                sys.stderr.write(clean(f"{queued(line)}{why}\n"))
    except RefusedError:
        return  # what is wrong is the load's to tell


def unload(model: ModelArgument, home: HomeOption = None) -> None:
    """Unload a model: its answers under way may finish, then its memory is given back.

    \b
    Example:
      mlx-supervisor unload smollm2-135m
    """
    unloaded = supervisor_of(home).act(model, "unload")
    say(f"{unloaded['id']} is unloaded")

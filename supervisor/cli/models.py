"""What is loaded, and what could be: ps, list, load, unload."""

from typing import Annotated

import typer

from shared.sizes import format_duration, format_size
from supervisor.cli.options import HomeOption, JsonOption, complete_model, supervisor_of
from supervisor.cli.terminal import Style, say, say_json, say_table

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
        return
    rows = [
        (
            worker["id"],
            worker["state"],
            str(worker["pid"] or "-"),
            format_size(worker["footprint_bytes"]) if worker["footprint_bytes"] else "-",
            str(worker["in_flight"]),
            str(worker["queued"]),
            "-" if worker["idle_s"] is None else format_duration(worker["idle_s"]),
            str(worker["restarts"]),
        )
        for worker in workers
    ]
    say_table(
        ("model", "state", "pid", "memory", "in flight", "queued", "idle", "restarts"),
        rows,
        right=("pid", "memory", "in flight", "queued", "idle", "restarts"),
        styles=[_STYLES.get(worker["state"], "") for worker in workers],
    )
    for worker in workers:
        if worker["state"] == "failed":
            say(f"{worker['id']} died too often; try again with: mlx-supervisor load {worker['id']}")


def list_(home: HomeOption = None, json: JsonOption = False) -> None:
    """Show the models on this machine.

    \b
    Example:
      mlx-supervisor list
    """
    models = supervisor_of(home).get("/api/models")
    if json:
        say_json(models)
        return
    if not models["models"]:
        say("no models yet; get one with: mlx-supervisor import FILE.gguf")
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


def load(model: ModelArgument, home: HomeOption = None) -> None:
    """Load a model and wait until it is ready. Also wakes one that failed.

    \b
    Example:
      mlx-supervisor load smollm2-135m
    """
    loaded = supervisor_of(home).act(model, "load")
    say(f"{loaded['id']} is ready")


def unload(model: ModelArgument, home: HomeOption = None) -> None:
    """Unload a model: its answers under way may finish, then its memory is given back.

    \b
    Example:
      mlx-supervisor unload smollm2-135m
    """
    unloaded = supervisor_of(home).act(model, "unload")
    say(f"{unloaded['id']} is unloaded")

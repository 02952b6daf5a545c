"""Models as files: info, rm, gc."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from shared.sizes import format_duration, format_size
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.looking import looked_at
from supervisor.cli.models import ModelArgument
from supervisor.cli.options import HomeOption, JsonOption, chosen_home, supervisor_of
from supervisor.cli.terminal import say, say_json, say_table

if TYPE_CHECKING:
    from supervisor.catalog.storage import Storage

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Tell what would be freed; remove nothing.")]


def info(model: ModelArgument, home: HomeOption = None, json: JsonOption = False) -> None:
    """Show all that is known of one model. While no supervisor runs it is looked at by this command itself.

    \b
    Example:
      mlx-supervisor info smollm2-135m
    """
    try:
        facts = supervisor_of(home).get(f"/api/models/{quote(model, safe='/')}")
    except NotRunningError as missing:
        facts = _info_here(model, home, missing)
    if json:
        say_json(facts)
        return
    for name, value in _facts(facts):
        say(f"{name + ':':<14}{value}")


def _info_here(model: str, home: Path | None, missing: NotRunningError) -> Any:
    import msgspec

    from supervisor.catalog.storage import Storage
    from supervisor.routes.views import details_of

    with looked_at(home, missing) as here:
        files = Storage(here.home, here.catalog)
        entry = files.find(model)
        return msgspec.to_builtins(details_of(entry, here.settings, files.on_disk(entry), None))


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", facts["id"]
    yield "state", facts["state"] or ("can't be loaded" if facts["problem"] else "not loaded")
    if facts["problem"]:
        yield "problem", facts["problem"]
    if facts["aliases"]:
        yield "aliases", ", ".join(facts["aliases"])
    if facts["also"]:
        yield "found as", ", ".join(facts["also"])
    packed = f", {facts['quantization']}" if facts["quantization"] else ""
    yield "architecture", (facts["architecture"] or "unknown") + packed
    if facts["capabilities"]:
        yield "can", ", ".join(facts["capabilities"])
    yield "context", f"{facts['context']} tokens" if facts["context"] else "unknown"
    yield "weights", format_size(facts["weights_bytes"])
    if (disk := facts["disk"]) is not None:
        yield "on disk", f"{format_size(disk['size_bytes'])} in {disk['path']}"
        if disk["repo"]:
            yield "from the hub", f"{disk['repo']}, commit {disk['commit'][:12]}"
    marks = [name for name in ("pin", "preload") if facts[name]]
    if facts["configured"]:
        yield "settings", f"config.toml{', ' + ', '.join(marks) if marks else ''}"
    if facts["adapters"]:
        yield "adapters", ", ".join(facts["adapters"])
    if (worker := facts["worker"]) is not None:
        yield "process", f"pid {worker['pid'] or '-'}, {worker['restarts']} restarts"
        if worker["footprint_bytes"]:
            yield "memory", format_size(worker["footprint_bytes"])
        yield "requests", f"{worker['in_flight']} in flight, {worker['queued']} queued"
        if worker["idle_s"] is not None:
            yield "idle", format_duration(worker["idle_s"])


def rm(
    model: ModelArgument, dry_run: DryRunOption = False, home: HomeOption = None, json: JsonOption = False
) -> None:
    """Remove a model from the disk: one of ours, or one in the Hugging Face cache. Never one that is loaded.

    \b
    Example:
      mlx-supervisor rm smollm2-135m --dry-run
    """
    try:
        option = f"?dry_run={str(dry_run).lower()}"
        removed = supervisor_of(home).delete(f"/api/models/{quote(model, safe='/')}{option}")
    except NotRunningError:
        removed = _remove_here(model, home, dry_run)
    if json:
        say_json(removed)
        return
    verb = "would be removed" if dry_run else "removed"
    say(f"{removed['id']} {verb}: {format_size(removed['freed_bytes'])}")
    if removed["kept"]:
        say(removed["kept"])


def gc(dry_run: DryRunOption = False, home: HomeOption = None, json: JsonOption = False) -> None:
    """Clean up: downloads and imports that broke off, old revisions, blobs that no model has. Never a model.

    \b
    Example:
      mlx-supervisor gc --dry-run
    """
    try:
        client = supervisor_of(home)
        found = client.get("/api/garbage") if dry_run else client.post("/api/gc")
    except NotRunningError:
        found = _clean_here(home, dry_run)
    if json:
        say_json(found)
        return
    if not found["garbage"]:
        say("there is nothing to clean up")
        return
    rows = [(item["kind"], item["name"], format_size(item["size_bytes"])) for item in found["garbage"]]
    say_table(("what", "of", "size"), rows, right=("size",))
    say(f"{'would free' if dry_run else 'freed'} {format_size(found['freed_bytes'])}")


def _remove_here(model: str, home: Path | None, dry_run: bool) -> Any:
    import msgspec

    with _files(home) as files:
        if dry_run:
            return msgspec.to_builtins(files.would_remove(model))
        removed, left = files.take_away(model)
        files.delete(left)
        return msgspec.to_builtins(removed)


def _clean_here(home: Path | None, dry_run: bool) -> Any:
    import msgspec

    with _files(home) as files:
        return msgspec.to_builtins(files.shown_garbage() if dry_run else files.clean())


@contextlib.contextmanager
def _files(home: Path | None) -> "Iterator[Storage]":
    """The files, while no supervisor runs, and none can start. Raises RefusedError."""
    from shared.errors import PublicError
    from supervisor.catalog.catalog import Catalog
    from supervisor.catalog.storage import Storage
    from supervisor.home import Home, HomeError
    from supervisor.settings import SettingsError, load_settings

    try:
        folder = Home.open(chosen_home(home))
        lock = folder.lock()
    except HomeError as error:
        raise RefusedError(str(error)) from None
    try:
        catalog = Catalog(folder, load_settings(folder.config, environ=os.environ))
        yield Storage(folder, catalog)
    except SettingsError as error:
        raise RefusedError(str(error)) from None
    except PublicError as error:
        raise RefusedError(error.message) from None
    finally:
        lock.close()

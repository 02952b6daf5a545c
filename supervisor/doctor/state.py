"""The state folder, what is in it, and the settings."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from shared.errors import PublicError
from shared.sizes import format_size
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.storage import Storage
from supervisor.doctor.finding import Finding, fail, ok, warn
from supervisor.home import Holder, Home, HomeError, NoHomeError
from supervisor.settings import Settings, SettingsError, load_settings
from supervisor.system.service import Running
from supervisor.workers.ledger import living

_LOW_BYTES: Final = 5 * 2**30
_FULL_BYTES: Final = 512 * 2**20
_MUCH_GARBAGE_BYTES: Final = 2**30
_LISTED: Final = 3


def check_home(path: Path, find: Callable[[Path], Home] = Home.find) -> tuple[Finding, Home | None]:
    """The state folder: whose it is, its mode, and whether sockets fit into its path."""
    try:
        home = find(path)
    except NoHomeError:
        return ok("state folder", f"{path} is none yet; the first start makes it"), None
    except HomeError as error:
        sentence, _, mend = str(error).partition("; run: ")
        return fail("state folder", sentence, "nothing starts with such a state folder", mend or None), None
    if home.run != path / "run":
        return ok("state folder", f"{path}; its path is long, so sockets are in {home.run}"), home
    return ok("state folder", f"{path}, yours alone"), home


def check_lock(holder: Holder | None, running: Running | None) -> Finding:
    """Who holds the state folder, and whether he answers."""
    if holder is None:
        return ok("supervisor", "none runs with this state folder")
    pid = f"pid {holder.pid}" if holder.pid else "pid unknown"
    if running is None:
        return warn(
            "supervisor",
            f"one holds the state folder ({pid}) and does not answer",
            "it is starting, stopping, or stuck",
            "mlx-supervisor logs, or to end it: mlx-supervisor stop",
        )
    return ok("supervisor", f"serves on {running.url}/v1, {pid}")


def check_logs(home: Home, running: Running | None) -> Finding:
    """Whether the logs took everything."""
    if running is not None and running.lost_log_lines:
        return warn(
            "logs",
            f"{running.lost_log_lines} lines could not be written to {home.logs} since the start",
            "the disk was full, or the folder can't be written; serving goes on without them",
            f"df -h {shlex.quote(str(home.logs))}; ls -ld {shlex.quote(str(home.logs))}",
        )
    return ok("logs", str(home.logs) + (", nothing was lost" if running else ""))


def check_stale(home: Home, holder: Holder | None, look: Callable[[Path], list[int]] = living) -> Finding:
    """What a supervisor left that was killed: processes that still run, sockets."""
    if holder is not None:
        return ok("left behind", "nothing to look for while a supervisor runs")
    pids = look(home.run / "workers.json")
    if pids:
        return warn(
            "left behind",
            f"workers of a supervisor that is gone still run: pid {', '.join(map(str, pids))}",
            "they hold memory and serve nobody; the next start ends them",
            "mlx-supervisor start",
        )
    sockets = sorted(path.name for path in home.run.glob("*.sock"))
    if sockets:
        return ok("left behind", f"{len(sockets)} dead sockets; the next start removes them")
    return ok("left behind", "nothing")


def check_settings(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[list[Finding], Settings]:
    """The configuration: each mistake is a finding of its own. The defaults count where it can't be used."""
    try:
        settings = load_settings(path, environ=environ)
    except SettingsError as error:
        means = "the supervisor does not start with it, and a running one does not reload it"
        return [
            fail("settings", problem, means, f"edit {path}, then: mlx-supervisor config check")
            for problem in error.problems
        ], Settings()
    number = len(settings.models)
    named = f"{path}, {number} model{'s' if number != 1 else ''} named"
    says = named if path.exists() else "all defaults"
    return [ok("settings", says)], settings


def check_models(home: Home, settings: Settings) -> tuple[Finding, list[ModelEntry]]:
    """Whether there are models, and which of them can't be loaded."""
    entries = Catalog(home, settings).entries()
    if not entries:
        none = "there is nothing to serve"
        return warn("models", "none", none, "mlx-supervisor pull ORG/NAME"), []
    broken = [entry for entry in entries if entry.problem is not None]
    usable = [entry for entry in entries if entry.problem is None]
    if not broken:
        return ok("models", f"{len(entries)}, all of them whole"), usable
    shown = "; ".join(f"{entry.id}: {entry.problem}" for entry in broken[:_LISTED])
    more = f"; and {len(broken) - _LISTED} more" if len(broken) > _LISTED else ""
    return warn(
        "models",
        f"{len(broken)} of {len(entries)} can't be loaded: {shown}{more}",
        "requests for them are refused",
        "mlx-supervisor list",
    ), usable


def check_disk(
    places: Iterable[tuple[str, Path]],
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> list[Finding]:
    """Room on the disks of these places, each with a name for people; one finding for each disk."""
    found: dict[tuple[int, int], Finding] = {}
    for name, path in places:
        there = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
        try:
            room = free(there)
            key = (there.stat().st_dev, room)
        except OSError as error:
            found[(-1, len(found))] = fail("disk", f"{name}: {error.strerror}", "it can't be used")
            continue
        says = f"{format_size(room)} free for {name}"
        mend = "mlx-supervisor gc --dry-run, mlx-supervisor rm MODEL"
        if room < _FULL_BYTES:
            finding = fail("disk", says, "logs, downloads and saved prompts don't fit any more", mend)
        elif room < _LOW_BYTES:
            finding = warn("disk", says, "the next model will hardly fit", mend)
        else:
            finding = ok("disk", says)
        found.setdefault(key, finding)
    return list(found.values())


def check_garbage(home: Home, settings: Settings) -> Finding:
    """What could be cleaned up."""
    try:
        garbage = Storage(home, Catalog(home, settings)).garbage()
    except (OSError, PublicError) as error:
        return warn("garbage", f"can't be looked for: {error}", "a cleanup would not work either")
    size = sum(item.size_bytes for item in garbage)
    if size >= _MUCH_GARBAGE_BYTES:
        return warn(
            "garbage",
            f"{format_size(size)} of what broke off or is of no use any more",
            "it takes room on the disk and nothing else",
            "mlx-supervisor gc --dry-run",
        )
    return ok("garbage", format_size(size) if size else "none")

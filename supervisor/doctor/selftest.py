"""One token from a real worker: the only proof that a model can be served."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from shared.launch import LaunchRecord, Options
from shared.sizes import format_duration, format_size
from supervisor.catalog.catalog import ModelEntry
from supervisor.doctor.finding import Finding, fail, ok, warn
from supervisor.telemetry.appendfile import AppendFile
from supervisor.workers.pool import WORKER_COMMAND
from supervisor.workers.process import WorkerProcess

TIMEOUT_S: Final = 120.0
_GRACE_S: Final = 3.0
_SHARE: Final = 0.5
"""Of the memory that is free, what a model may take that is loaded only to try it."""


class Tried(msgspec.Struct, frozen=True):
    """A worker that has generated its token."""

    load_s: float
    footprint_bytes: int


class TrialError(Exception):
    """Raised when the worker did not get ready; the message says why."""


def smallest(entries: Iterable[ModelEntry], available_bytes: int) -> ModelEntry | None:
    """The smallest model that can be tried without pushing anything out of memory."""
    fitting = [entry for entry in entries if entry.weights_bytes <= available_bytes * _SHARE]
    return min(fitting, key=lambda entry: (entry.weights_bytes, entry.id), default=None)


def try_worker(
    entry: ModelEntry,
    *,
    command: Sequence[str] = WORKER_COMMAND,
    environ: Mapping[str, str] = os.environ,
    timeout_s: float = TIMEOUT_S,
) -> Tried:
    """Load the model in a worker, which says `ready` when it has generated a token. Raises TrialError."""
    return asyncio.run(_try(entry, command, environ, timeout_s))


async def _try(
    entry: ModelEntry, command: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> Tried:
    with tempfile.TemporaryDirectory(prefix="mlxs-", dir="/tmp") as folder:  # 0700, and short
        try:
            worker = await WorkerProcess.spawn(command, environ)
        except OSError as error:
            raise TrialError(f"it could not be started: {error.strerror or error}") from None
        try:
            options = Options(max_concurrency=1, prompt_cache_bytes=0)
            record = LaunchRecord(f"{folder}/w.sock", entry.id, str(entry.directory), 1, options)
            worker.assign(record, AppendFile(Path(folder) / "worker.log"))
            waiting: set[asyncio.Future[Any]] = {worker.ready, worker.exited}
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if worker.ready.done() and not worker.ready.cancelled():
                ready = worker.ready.result()
                return Tried(ready.load_s, ready.memory.footprint_bytes)
        finally:
            ended = await worker.stop(grace_s=_GRACE_S)
    if worker.load_failure is not None:
        raise TrialError(worker.load_failure.message)
    if ended.during == "stopping":
        raise TrialError(f"it was not ready within {timeout_s:.0f} s")
    last = f"; its last words: {ended.last_lines[-1]}" if ended.last_lines else ""
    raise TrialError(f"{ended.describe()}{last}")


def check_worker(
    entries: Sequence[ModelEntry],
    available_bytes: int,
    attempt: Callable[[ModelEntry], Tried] = try_worker,
) -> Finding:
    """A token from the smallest model."""
    if not entries:
        return warn(
            "worker", "not tried: there is no model that can be loaded", "nothing proves that one works"
        )
    entry = smallest(entries, available_bytes)
    if entry is None:
        return warn(
            "worker",
            f"not tried: the smallest model needs more than half of the {format_size(available_bytes)} "
            "of memory that is free",
            "nothing proves that one works",
            "close other programs, or: mlx-supervisor unload MODEL",
        )
    try:
        tried = attempt(entry)
    except TrialError as error:
        return fail(
            "worker",
            f"{entry.id} did not generate a token: {error}",
            "models can't be served",
            f"mlx-supervisor info {entry.id}, or try another: mlx-supervisor load MODEL",
        )
    memory = f", {format_size(tried.footprint_bytes)} of memory" if tried.footprint_bytes else ""
    return ok("worker", f"{entry.id} generated a token, after {format_duration(tried.load_s)}{memory}")

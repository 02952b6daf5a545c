"""`GET /stats`: what the parts have done so far, and with `?request=ID` what became of one request."""

import contextlib

import msgspec
from fastapi import APIRouter, Request

from shared import __version__
from shared.admin import CacheStats, Health
from shared.errors import PublicError
from supervisor.database import DatabaseError
from supervisor.history.kept import StoreStats
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json
from supervisor.telemetry.timelines import Timeline
from supervisor.workers.view import SpareView


class ServerStats(msgspec.Struct, frozen=True):
    """Counts are since the start."""

    version: str
    uptime_s: float
    requests: int
    leases: int


class WorkerStats(msgspec.Struct, frozen=True):
    """One model with a worker; null is what the worker did not answer in time."""

    id: str
    state: str
    restarts: int
    admission: Health | None
    """Requests in flight, running and queued, leases, as of now, and the batch's counters: its steps, the
    tokens they made, and what became of a draft's."""
    prompt_cache: CacheStats | None
    """With the saved state in `saved`."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Stats(msgspec.Struct, frozen=True):
    """`GET /stats`."""

    server: ServerStats
    workers: tuple[WorkerStats, ...]
    response_store: StoreStats | None
    """Null while the state database can't be used."""
    spare: SpareView | None
    waiting: int
    """Requests that have no place yet."""
    running: tuple[Timeline, ...]
    """Requests for models that are not answered yet, the oldest first."""


def stats(parts: Parts) -> APIRouter:
    """The route."""
    router = APIRouter(redirect_slashes=False)

    @router.api_route("/stats", methods=READ)
    async def show(request: Request) -> Json:
        name = request.query_params.get("request")
        if name is not None:
            line = parts.timelines.find(name)
            if line is None:
                raise PublicError(
                    404,
                    "request_not_found",
                    "None of the last thousand requests has this id.",
                    param="request",
                )
            return Json(line)
        engine, tally = parts.pool.engine(), parts.tally
        asked = await parts.pool.ask_workers()
        workers = tuple(
            WorkerStats(
                worker.id,
                worker.state,
                worker.restarts,
                *asked.get(worker.id, (None, None)),
                tally.prompt_tokens[worker.id],
                tally.cached_tokens[worker.id],
                tally.completion_tokens[worker.id],
            )
            for worker in engine.workers
        )
        store = None
        with contextlib.suppress(DatabaseError):
            store = await parts.history.stats()
        server = ServerStats(
            __version__,
            round(parts.uptime_s, 3),
            sum(tally.requests.values()),
            tally.leases,
        )
        waiting = sum(model.count for model in engine.waiting)
        running = tuple(parts.timelines.running())
        return Json(Stats(server, workers, store, engine.spare, waiting, running))

    return router

"""The control surface under `/api/`: what the command line and the console see and do.

Served on the control socket and on the public listener alike. GET never changes anything.
"""

import contextlib
import os

import msgspec
from fastapi import APIRouter, Request

from shared import __version__
from shared.errors import PublicError
from supervisor.http.connected import ClientGone
from supervisor.http.exchange import Exchange
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json
from supervisor.routes.views import models_of
from supervisor.settings.shown import ShownValue, shown_values


class Status(msgspec.Struct, frozen=True):
    """`GET /api/status`. `started_at` is in seconds since 1970."""

    version: str
    pid: int
    started_at: float
    home: str
    url: str
    log: str
    lost_log_lines: int = 0
    """Lines that the logs could not take since the start."""


class ConfigView(msgspec.Struct, frozen=True):
    """`GET /api/config`: every setting as it counts now."""

    values: tuple[ShownValue, ...]


class ModelState(msgspec.Struct, frozen=True):
    """A model after a load or an unload; null is not loaded."""

    id: str
    state: str | None


class Refreshed(msgspec.Struct, frozen=True):
    """`POST /api/catalog/refresh`: how many models there are."""

    models: int


class Stopping(msgspec.Struct, frozen=True):
    """`POST /api/stop`: the stop has begun; its end is the end of the process."""

    stopping: bool = True


def control(parts: Parts) -> APIRouter:
    """The routes of the control surface."""
    router = APIRouter(prefix="/api", redirect_slashes=False)

    @router.api_route("/status", methods=READ)
    async def status() -> Json:
        home = parts.home
        log = str(home.logs / "supervisor.log")
        return Json(
            Status(
                __version__,
                os.getpid(),
                parts.started_at,
                str(home.path),
                parts.url,
                log,
                sum(parts.events.lost_lines.values()),
            ),
        )

    @router.api_route("/config", methods=READ)
    async def config() -> Json:
        return Json(ConfigView(tuple(shown_values(parts.settings()))))

    @router.api_route("/engine", methods=READ)
    async def engine() -> Json:
        return Json(parts.pool.engine())

    @router.api_route("/models", methods=READ)
    async def models() -> Json:
        return Json(models_of(parts.catalog, parts.pool))

    @router.post("/models/{name:path}/load")
    async def load(request: Request) -> Json:
        entry = parts.catalog.resolve(request.path_params["name"], fallback=False)
        # Who leaves while it waits for room does not want it any more.
        with contextlib.suppress(ClientGone), Exchange.of(dict(request.scope)).while_connected():
            await parts.pool.load(entry)
        return Json(ModelState(entry.id, parts.pool.state_of(entry.id)))

    @router.post("/models/{name:path}/unload")
    async def unload(request: Request) -> Json:
        name = model_id = request.path_params["name"]
        try:
            model_id = parts.catalog.resolve(name, fallback=False).id
        except PublicError:
            # Its folder may be gone while it is still loaded.
            if parts.pool.state_of(name) is None:
                raise
        await parts.pool.unload(model_id)
        return Json(ModelState(model_id, parts.pool.state_of(model_id)))

    @router.post("/catalog/refresh")
    async def refresh() -> Json:
        await parts.refresh()
        return Json(Refreshed(len(parts.catalog.entries())))

    @router.post("/reload")
    async def reload() -> Json:
        return Json(await parts.reload())

    @router.post("/stop", status_code=202)
    async def stop() -> Json:
        parts.stop()
        return Json(Stopping(), 202)

    return router

"""Models as files, under `/api/`: one model in detail, removing one, cleaning up."""

import asyncio

from fastapi import APIRouter, Request

from shared.errors import invalid
from supervisor.catalog.removal import Use
from supervisor.catalog.storage import GarbageViews, RemovedView, Storage
from supervisor.routes.parts import Parts
from supervisor.routes.refusals import method_not_allowed
from supervisor.routes.replies import READ, Json
from supervisor.routes.views import details_of


def storage_now(parts: Parts) -> Storage:
    """The files behind the running catalog. Called in the loop, which knows who uses what."""
    workers = parts.pool.engine().workers
    return Storage(
        parts.home,
        parts.catalog,
        uses={
            worker.id: Use(worker.state, worker.pid, worker.in_flight, worker.queued) for worker in workers
        },
        folders_in_use=parts.pool.folders(),
        running=parts.downloads.running(),
    )


def storage(parts: Parts) -> APIRouter:
    """The routes. Whatever only looks at the disk does so in a thread."""
    router = APIRouter(prefix="/api", redirect_slashes=False)

    @router.api_route("/models/{name:path}", methods=READ)
    async def details(request: Request) -> Json:
        name: str = request.path_params["name"]
        if name.endswith(("/load", "/unload")):
            raise method_not_allowed("POST")
        files = storage_now(parts)
        entry = files.find(name)
        disk = await asyncio.to_thread(files.on_disk, entry)
        return Json(details_of(entry, parts.settings(), disk, parts.pool))

    @router.delete("/models/{name:path}")
    async def remove(request: Request) -> Json:
        name: str = request.path_params["name"]
        files = storage_now(parts)
        if _flag(request, "dry_run"):
            would: RemovedView = await asyncio.to_thread(files.would_remove, name)
            return Json(would)
        # In the loop, where nobody can load it meanwhile; what takes time comes after.
        removed, left = files.take_away(name)
        await parts.refresh()
        await asyncio.to_thread(files.delete, left)
        return Json(removed)

    @router.api_route("/garbage", methods=READ)
    async def garbage() -> Json:
        found: GarbageViews = await asyncio.to_thread(storage_now(parts).shown_garbage)
        return Json(found)

    @router.post("/gc")
    async def clean() -> Json:
        done: GarbageViews = await asyncio.to_thread(storage_now(parts).clean)
        await parts.refresh()
        return Json(done)

    return router


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise invalid(f"'{name}' must be true or false.", param=name)
    return value == "true"

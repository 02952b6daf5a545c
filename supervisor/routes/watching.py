"""`GET /events`: what happens, as it happens, as server-sent events; what is there comes first."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from shared import sse
from supervisor.catalog.downloads import DownloadViews
from supervisor.routes.parts import Parts
from supervisor.telemetry.events import Event
from supervisor.telemetry.watchers import Watcher
from supervisor.workers.view import EngineView

PING_S: Final = 15.0
LAST: Final = "workers.gone"
"""The event after which nothing more can be told: the stream ends with it."""


class Snapshot(msgspec.Struct, frozen=True):
    """The first event, `snapshot`: what later events change."""

    engine: EngineView
    downloads: DownloadViews


def watching(parts: Parts) -> APIRouter:
    """The route that tells events."""
    router = APIRouter(redirect_slashes=False)

    @router.get("/events")
    async def events() -> StreamingResponse:
        response = StreamingResponse(_stream(parts))
        response.raw_headers[:] = list(sse.HEADERS)
        return response

    return router


async def _stream(parts: Parts) -> AsyncIterator[bytes]:
    watcher = Watcher(parts.events)
    try:
        yield sse.event(
            msgspec.json.encode(Snapshot(parts.pool.engine(), parts.downloads.views())), "snapshot"
        )
        while True:
            taken, missed = await watcher.take(timeout_s=PING_S)
            if missed:
                yield sse.event(msgspec.json.encode({"count": missed}), "missed")
            if not taken:
                yield sse.PING
            for event in taken:
                yield _frame(event)
                if event.kind == LAST:
                    return
    finally:
        watcher.close()


def _frame(event: Event) -> bytes:
    fields = {name: value for name, value in event.fields.items() if value is not None}
    return sse.event(msgspec.json.encode({"at": event.at, "level": event.level, **fields}), event.kind)

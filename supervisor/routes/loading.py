"""Brings in the FastAPI applications while the supervisor already serves.

They cost most of a second of imports, and a request for a model needs none of it. A request that does need
them waits for the end of the imports.
"""

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Final

from supervisor.http.connected import ClientGone
from supervisor.http.exchange import Exchange
from supervisor.routes.parts import Parts

if TYPE_CHECKING:
    from fastapi import FastAPI

_YOUNG_OBJECTS: Final = 10_000
"""So many more than were freed make the garbage collector look at the young ones."""


class Routes:
    """`public` and `control` are ASGI applications."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._loading: asyncio.Task[tuple[FastAPI, FastAPI]] | None = None

    def load(self) -> None:
        """Begin to import, in a thread. Idempotent."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> "tuple[FastAPI, FastAPI]":
        apps = await asyncio.to_thread(self._build)
        # What is there now stays: a collection that went through all of it would stop every stream.
        gc.freeze()
        # What a request makes goes with it, without the collector. With many at once the usual 700 objects
        # are reached again and again for nothing.
        gc.set_threshold(_YOUNG_OBJECTS)
        return apps

    def _build(self) -> "tuple[FastAPI, FastAPI]":
        from supervisor.routes.apps import build_control_app, build_public_app

        return build_public_app(self._parts), build_control_app(self._parts)

    async def public(self, scope: Any, receive: Any, send: Any) -> None:
        """What the public listener answers by itself."""
        await self._serve(0, scope, receive, send)

    async def control(self, scope: Any, receive: Any, send: Any) -> None:
        """What the control socket answers."""
        await self._serve(1, scope, receive, send)

    async def _serve(self, index: int, scope: Any, receive: Any, send: Any) -> None:
        self.load()
        assert self._loading is not None
        if not self._loading.done():
            try:
                with Exchange.of(scope).while_connected():
                    await asyncio.shield(self._loading)
            except ClientGone:
                return
        await self._loading.result()[index](scope, receive, send)

    async def close(self) -> None:
        """Wait for a load that is under way: a thread that imports can't be stopped."""
        if self._loading is not None:
            await asyncio.wait([self._loading])

"""`GET /fit`: whether a model would fit, with which context, how fast; here and on every Mac there is."""

import asyncio
from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Request

from shared.errors import invalid
from supervisor.catalog.fit import ContextError, Report, report
from supervisor.catalog.machine import detect, lineup
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json

_MOST_TOKENS: Final = 2**31 - 1
_MOST_ROWS: Final = 1024
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}


def fit(parts: Parts) -> APIRouter:
    """The route."""
    router = APIRouter(redirect_slashes=False)

    @router.api_route("/fit", methods=READ)
    async def fit(request: Request) -> Json:
        asked = request.query_params
        if not asked.get("model"):
            raise invalid("'model' is required: /fit?model=ID", param="model", code="missing_field")
        entry = parts.catalog.resolve(asked["model"], fallback=False)
        context = _whole(asked, "ctx", _MOST_TOKENS)
        rows = _whole(asked, "rows", _MOST_ROWS) or 1
        machines = _switch(asked, "machines")
        cost = parts.costs.cost(entry)
        # What the GPU may hold is known once a worker has said it.
        said = [worker.memory.working_set_bytes for worker in parts.pool.engine().workers if worker.memory]

        def reckon() -> Report:
            return report(
                entry,
                detect(working_set_bytes=max(said, default=0)),
                budget_bytes=parts.budget_bytes(),
                context=context,
                rows=rows,
                cost=cost,
                machines=lineup() if machines else None,
            )

        try:
            # It reads the model's headers.
            return Json(await asyncio.to_thread(reckon))
        except ContextError as error:
            raise invalid(str(error), param="ctx") from None

    return router


def _whole(asked: Mapping[str, str], name: str, most: int) -> int | None:
    text = asked.get(name)
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0
    if not 1 <= value <= most:
        raise invalid(f"'{name}' must be a whole number from 1 to {most}, not {text[:40]!r}.", param=name)
    return value


def _switch(asked: Mapping[str, str], name: str) -> bool:
    text = asked.get(name, "0")
    if text.lower() not in _SWITCHES:
        raise invalid(f"'{name}' must be true or false, not {text[:40]!r}.", param=name)
    return _SWITCHES[text.lower()]

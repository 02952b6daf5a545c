"""What is served here, and which models: `/v1`, `/v1/models`, `/engine`.

Source of the model object's shape: OpenAI's `Model`; what is added to it is our own.
"""

import msgspec
from fastapi import APIRouter, Request

from shared import __version__
from shared.launch import Sampling
from supervisor.catalog.catalog import ModelEntry
from supervisor.relay import FORWARDED
from supervisor.responses.paths import ROUTES as RESPONSES
from supervisor.routes.anthropic_models import Info, info, page
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json

ROUTES = (
    *sorted(f"POST {path.decode()}" for path in FORWARDED),
    *RESPONSES,
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /health",
    "GET /engine",
    "GET /stats",
    "GET /fit",
    "GET /downloads",
    "GET /events",
    "GET /metrics",
)


class Service(msgspec.Struct, frozen=True):
    """`GET /v1`."""

    name: str
    version: str
    routes: tuple[str, ...]
    models: tuple[str, ...]


class Card(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of `GET /v1/models`."""

    id: str
    object: str
    created: int
    owned_by: str
    resident: bool
    """Has a worker, be it one that loads."""
    loading: bool
    state: str | None
    context_window: int | None
    """Tokens that prompt and completion may have together; null while unknown."""
    aliases: tuple[str, ...]
    capabilities: tuple[str, ...]
    """What it can, as its worker said or as its files tell, and the routes that this means."""
    defaults: Sampling
    """What a request that does not say gets: as the settings have it, else as the model's own files do. Of
    what is absent neither says anything."""
    max_concurrency: int
    architecture: str | None
    quantization: str | None
    weights_bytes: int
    problem: str | None = None
    """Why it can't be loaded."""


class Cards(msgspec.Struct, frozen=True):
    """`GET /v1/models`."""

    data: tuple[Card, ...]
    object: str = "list"


_ROUTES_OF_CHAT = ("completions", "messages", "responses", "decisions")


def _all(able: tuple[str, ...], entry: ModelEntry) -> tuple[str, ...]:
    """Abilities, and what follows from them."""
    more = _ROUTES_OF_CHAT if "chat" in able else ()
    adapters = ("adapters",) if entry.settings.adapters else ()
    return tuple(dict.fromkeys((*able, *more, *adapters)))


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def discovery(parts: Parts) -> APIRouter:
    """The routes that show and never change."""
    router = APIRouter(redirect_slashes=False)

    def card(entry: ModelEntry) -> Card:
        state, said = parts.pool.state_of(entry.id), parts.pool.capabilities_of(entry.id)
        return Card(
            id=entry.id,
            object="model",
            created=int(entry.created_s or parts.started_at),
            owned_by="mlx-supervisor",
            resident=state not in (None, "failed"),
            loading=state in ("starting", "restarting"),
            state=state,
            context_window=entry.context,
            aliases=(*entry.settings.aliases, *entry.also),
            capabilities=_all(entry.capabilities if said is None else said, entry),
            defaults=entry.sampling,
            max_concurrency=entry.settings.max_concurrency,
            architecture=entry.architecture,
            quantization=entry.quantization,
            weights_bytes=entry.weights_bytes,
            problem=entry.problem,
        )

    def served() -> list[ModelEntry]:
        return [entry for entry in parts.catalog.entries() if entry.problem is None]

    @router.api_route("/v1", methods=READ)
    async def service() -> Json:
        models = tuple(entry.id for entry in served())
        return Json(Service("mlx-supervisor", __version__, ROUTES, models))

    def described(entry: ModelEntry) -> Info:
        return info(entry.id, created=entry.created_s or parts.started_at, context=entry.context)

    @router.api_route("/v1/models", methods=READ)
    async def models(request: Request) -> Json:
        if _is_anthropic(request):
            return Json(page([described(entry) for entry in served()], request.query_params))
        return Json(Cards(tuple(card(entry) for entry in served())))

    @router.api_route("/v1/models/{name:path}", methods=READ)
    async def model(request: Request) -> Json:
        entry = parts.catalog.resolve(request.path_params["name"])
        return Json(described(entry) if _is_anthropic(request) else card(entry))

    @router.api_route("/engine", methods=READ)
    async def engine() -> Json:
        return Json(parts.pool.engine())

    return router

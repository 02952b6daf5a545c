"""What is served here, and which models: `/v1`, `/v1/models`, `/engine`.

Source of the model object's shape: OpenAI's `Model`; what is added to it is our own.
"""

import msgspec
from fastapi import APIRouter, Request

from shared import __version__
from supervisor.catalog.catalog import ModelEntry
from supervisor.relay import FORWARDED
from supervisor.responses.paths import ROUTES as RESPONSES
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json

ROUTES = (
    *sorted(f"POST {path.decode()}" for path in FORWARDED),
    *RESPONSES,
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /health",
    "GET /engine",
    "GET /downloads",
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
    """What it can (`chat`, `tools`, `embeddings` and so on): as its worker said, or as its files tell."""
    architecture: str | None
    quantization: str | None
    weights_bytes: int
    problem: str | None = None
    """Why it can't be loaded."""


class Cards(msgspec.Struct, frozen=True):
    """`GET /v1/models`."""

    data: tuple[Card, ...]
    object: str = "list"


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
            capabilities=entry.capabilities if said is None else said,
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

    @router.api_route("/v1/models", methods=READ)
    async def models() -> Json:
        return Json(Cards(tuple(card(entry) for entry in served())))

    @router.api_route("/v1/models/{name:path}", methods=READ)
    async def model(request: Request) -> Json:
        return Json(card(parts.catalog.resolve(request.path_params["name"])))

    @router.api_route("/engine", methods=READ)
    async def engine() -> Json:
        return Json(parts.pool.engine())

    return router

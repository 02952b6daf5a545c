"""Models as the control surface shows them, and as a verb does while no supervisor runs."""

from typing import TYPE_CHECKING

import msgspec

from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.storage import DiskView
from supervisor.settings import Settings
from supervisor.workers.view import WorkerView

if TYPE_CHECKING:
    from supervisor.routes.parts import ModelPool


class ModelView(msgspec.Struct, frozen=True):
    """One model of `GET /api/models`, loadable or not."""

    id: str
    state: str | None
    problem: str | None
    architecture: str | None
    quantization: str | None
    context: int | None
    weights_bytes: int
    capabilities: tuple[str, ...]
    """What it can do: as its worker said, or as its files tell."""
    vision: bool
    """Whether it was made to see as well."""
    aliases: tuple[str, ...]
    also: tuple[str, ...]
    """Ids under which its folder was found, where the configuration gives it another."""
    pin: bool
    place: str
    path: str
    revision: str | None
    """The commit, of one from the hub."""


class ModelViews(msgspec.Struct, frozen=True):
    """`GET /api/models`."""

    models: tuple[ModelView, ...]
    problems: tuple[str, ...] = ()
    """What is wrong with the places where models are looked for."""


class ModelDetails(ModelView, frozen=True, kw_only=True):
    """`GET /api/models/{id}`: all that is known of one model."""

    preload: bool
    adapters: tuple[str, ...]
    configured: bool
    """Whether it has a table in config.toml."""
    disk: DiskView | None
    worker: WorkerView | None


def view_of(entry: ModelEntry, pool: "ModelPool | None") -> ModelView:
    """The model as it is now; no model is loaded without a pool."""
    said = None if pool is None else pool.capabilities_of(entry.id)
    return ModelView(
        id=entry.id,
        state=None if pool is None else pool.state_of(entry.id),
        problem=entry.problem,
        architecture=entry.architecture,
        quantization=entry.quantization,
        context=entry.context,
        weights_bytes=entry.weights_bytes,
        capabilities=entry.capabilities if said is None else said,
        vision=entry.vision,
        aliases=entry.settings.aliases,
        also=entry.also,
        pin=entry.settings.pin,
        place=entry.place,
        path=str(entry.directory),
        revision=entry.revision,
    )


def models_of(catalog: Catalog, pool: "ModelPool | None") -> ModelViews:
    """All of them."""
    return ModelViews(tuple(view_of(entry, pool) for entry in catalog.entries()), catalog.problems)


def details_of(
    entry: ModelEntry, settings: Settings, disk: DiskView | None, pool: "ModelPool | None"
) -> ModelDetails:
    """One of them."""
    workers = () if pool is None else pool.engine().workers
    return ModelDetails(
        **msgspec.structs.asdict(view_of(entry, pool)),
        preload=entry.settings.preload,
        adapters=tuple(entry.settings.adapters),
        configured=entry.id in settings.models,
        disk=disk,
        worker=next((worker for worker in workers if worker.id == entry.id), None),
    )

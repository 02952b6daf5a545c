"""A model as the control surface shows it."""

import msgspec

from supervisor.catalog.catalog import ModelEntry
from supervisor.routes.parts import Parts


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


def view_of(parts: Parts, entry: ModelEntry) -> ModelView:
    """The model as it is now."""
    said = parts.pool.capabilities_of(entry.id)
    return ModelView(
        id=entry.id,
        state=parts.pool.state_of(entry.id),
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

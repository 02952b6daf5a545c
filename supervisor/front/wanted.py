"""Which model a request is for, and what that model's settings make of the request."""

from shared.envelope import open_envelope, with_fields
from supervisor.catalog.catalog import Catalog
from supervisor.relay import Wanted


def wanted_of(body: bytes, catalog: Catalog) -> Wanted:
    """Raises PublicError: 400 for a body that names no model, 404 for a model that there is not."""
    envelope = open_envelope(body)
    entry = catalog.resolve(envelope.model)
    settings = entry.settings
    if settings.set or settings.strip:
        body = with_fields(body, settings.set, settings.strip)
    return Wanted(entry, body, bool(envelope.stream))

"""A request on its way through the front."""

import functools
import time

from shared.errors import Api
from shared.headers import Fields, Headers
from shared.request_ids import HEADER, headers_for, request_id
from supervisor.http.exchange import Exchange
from supervisor.telemetry.timelines import Mark


class Incoming:
    """What the front finds out about it."""

    __slots__ = ("api", "at", "exchange", "fields", "labels", "mark", "model", "name", "path")

    def __init__(self, exchange: Exchange) -> None:
        self.at = time.monotonic()
        """When it came."""
        self.exchange = exchange
        self.fields: Fields = exchange.fields
        """Its headers by name; once they are checked, with the name that it has here."""
        self.path = exchange.path
        self.api = _api_of(self.path, b"anthropic-version" in self.fields)
        self.name = request_id(self.fields.get(HEADER))
        self.labels: Headers = headers_for(self.name, self.api)
        """Headers that its answer carries, whatever it is."""
        self.model = ""
        """The id of the model that it turned out to be for."""
        self.mark: Mark | None = None
        """Writes its timeline, if it has one."""


@functools.lru_cache(maxsize=64)
def _api_of(path: str, anthropic_client: bool) -> Api:  # a cache's key
    return Api.of_path(path, anthropic_client=anthropic_client)

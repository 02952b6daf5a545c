"""A request on its way through the front."""

import time

from shared.errors import Api
from shared.headers import Fields, Headers
from shared.request_ids import HEADER, headers_for, request_id
from supervisor.http.exchange import Exchange
from supervisor.telemetry.timelines import Mark


class Incoming:
    """What the front finds out about it."""

    __slots__ = ("api", "at", "exchange", "fields", "labels", "mark", "model", "name")

    def __init__(self, exchange: Exchange) -> None:
        self.at = time.monotonic()
        """When it came."""
        self.exchange = exchange
        self.fields: Fields = dict(exchange.headers)
        """Its headers by name; once they are checked, with the name that it has here."""
        self.api = Api.of_path(exchange.path, anthropic_client=b"anthropic-version" in self.fields)
        self.name = request_id(self.fields.get(HEADER))
        self.labels: Headers = headers_for(self.name, self.api)
        """Headers that its answer carries, whatever it is."""
        self.model = ""
        """The id of the model that it turned out to be for."""
        self.mark: Mark | None = None
        """Writes its timeline, if it has one."""

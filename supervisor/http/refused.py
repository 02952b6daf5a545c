"""A request that the server answers by itself: it can't be read, or comes too slowly."""

from shared.errors import Api, PublicError
from shared.request_ids import HEADER, headers_for, request_id
from supervisor.http.exchange import Exchange, status_line


class Refused:
    """`broken` is the request, if its head has come."""

    __slots__ = ("_api", "_name", "error", "uncounted_path")

    def __init__(self, error: PublicError, broken: Exchange | None) -> None:
        self.error = error
        self.uncounted_path: bytes | None = b""
        """Of one that the application never saw, and so can't count; empty when its head did not come."""
        self._api = Api.OPENAI
        offered: bytes | None = None
        if broken is not None:
            offered = broken.fields.get(HEADER)
            self.uncounted_path = None if broken.begun else broken.raw_path
            self._api = Api.of_path(broken.path, anthropic_client=b"anthropic-version" in broken.fields)
        self._name = request_id(offered)

    def answer(self) -> bytes:
        """As it goes to the client, who is to see the end of the connection next."""
        error = self.error
        body = error.body(self._api, self._name.decode())
        headers = [*error.headers(), *headers_for(self._name, self._api)]
        lines = [b"%b: %b\r\n" % header for header in headers]
        tail = b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        return b"".join([status_line(error.status), *lines, tail])

"""Reads HTTP/1.1 requests off a connection, within limits.

llhttp (in httptools) refuses by itself what smuggles requests: Content-Length with Transfer-Encoding, two
lengths, bare line feeds, folded lines, NUL. The limits on size and count are ours.
"""

from enum import Enum
from typing import Final, Protocol

import httptools
import msgspec

from shared.errors import PublicError
from shared.headers import Fields, Headers

_WIRE_SLACK_BYTES: Final = 64 * 1024
_WIRE_PER_BYTE: Final = 16
"""Chunk sizes, extensions and trailers may take this much per byte of body, beyond the slack."""


class Limits(msgspec.Struct, frozen=True):
    """What a client may ask of a connection. Seconds and bytes."""

    head_bytes: int = 32 * 1024
    head_fields: int = 100
    target_bytes: int = 8 * 1024
    head_s: float = 10.0
    """From the first byte of a head to its end."""
    body_window_s: float = 10.0
    body_rate_bytes_s: int = 512
    """A body must come at this rate, averaged over each window."""


class Refusal(Exception):  # noqa: N818  # carries an answer out of the parser
    """Raised for a request that gets `error` and the end of its connection, because what follows it on the
    wire can't be told apart or is not worth reading."""

    def __init__(self, error: PublicError) -> None:
        super().__init__(error.message)
        self.error = error


class Reading(Enum):
    """What the client's next byte belongs to."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


# An enumeration's members are looked up slowly through its name.
_NOTHING: Final = Reading.NOTHING
_HEAD: Final = Reading.HEAD
_BODY: Final = Reading.BODY


class Head(msgspec.Struct, frozen=True):
    """A request's head. `http_version` is 1.0 or 1.1; names of headers are in lower case."""

    method: str
    target: bytes
    http_version: str
    headers: list[tuple[bytes, bytes]]
    fields: Fields
    """The headers by name, of one that comes several times the last."""
    keep_alive: bool
    expects_continue: bool


class Receiver(Protocol):
    """Gets what was read, in order."""

    def on_request(self, head: Head) -> None: ...
    def on_request_body(self, body: bytes) -> None: ...
    def on_request_end(self) -> None: ...


class RequestReader:
    """Feed it what came; the receiver is called from within."""

    def __init__(self, receiver: Receiver, limits: Limits) -> None:
        self.reading = Reading.NOTHING
        self.new_phase = False
        """Whether a head or a body has begun; the reader only sets it."""
        self.window_bytes = 0
        """Bytes of body that came; the reader only adds to it."""
        self._receiver = receiver
        self._limits = limits
        self._parser = self._new_parser()
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._feed_bytes = 0
        self._wire_bytes = 0
        self._body_bytes = 0
        self._upgrade_framing: bytes | None = None
        self._replaying = False

    def feed(self, data: bytes) -> None:
        """Raises Refusal; nothing may be fed after that."""
        size = self._feed_bytes = len(data)
        self._wire_bytes += size
        self._feed(data)
        reading = self.reading
        if reading is _NOTHING:
            return
        head_bytes = self._limits.head_bytes
        if reading is _HEAD and self._wire_bytes > head_bytes:
            raise _head_too_large("The request's head is too large.")
        allowed_bytes = head_bytes + _WIRE_SLACK_BYTES + _WIRE_PER_BYTE * self._body_bytes
        if reading is _BODY and self._wire_bytes > allowed_bytes:
            raise _bad_request("The request's body is cut into too many pieces.")

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that asks to close is dropped with the connection; it is no error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refusal):
                raise error.__context__ from None
            raise _bad_request(f"The request is not valid HTTP/1.1: {error}.") from None

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Serve a request that offers an upgrade (Java's client offers h2c) as if it had not.

        The parser takes everything behind its head for another protocol, body included, so a new one
        is told of a request with the same framing and goes on from there.
        """
        framing, self._upgrade_framing = self._upgrade_framing, None
        self._parser = self._new_parser()
        self._replaying = True
        self._feed(b"POST / HTTP/1.1\r\n%b\r\n" % (framing or b""))
        if rest:
            self._feed(rest)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self.reading = _HEAD
        self.new_phase = True
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._wire_bytes = self._feed_bytes
        self._body_bytes = 0

    def on_url(self, part: bytes) -> None:
        if self._replaying:
            return
        self._target += part
        if len(self._target) > self._limits.target_bytes:
            raise _refusal(414, "target_too_long", "The request's target is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        head_bytes = self._head_bytes = self._head_bytes + len(name) + len(value) + 4
        if head_bytes > self._limits.head_bytes:
            raise _head_too_large("The request's headers are too large.")
        # Trailers come when everything was decided by the head: they are read and dropped.
        if self.reading is _HEAD:
            headers = self._headers
            if len(headers) >= self._limits.head_fields:
                raise _head_too_large("The request has too many headers.")
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._replaying = False
            return
        self.reading = _BODY
        self.new_phase = True
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _refusal(505, "unsupported_version", "Speak HTTP/1.1.")
        method = parser.get_method().decode()
        if method == "CONNECT":
            raise _bad_request("This is not a proxy.")
        fields = dict(headers)
        if b"transfer-encoding" in fields:
            _check_encoding(headers)
        expects_continue = b"expect" in fields and version == "1.1"
        if expects_continue:
            _check_expectation(headers)
        if parser.should_upgrade():
            self._upgrade_framing = _framing(fields)
        keep_alive = version == "1.1" and parser.should_keep_alive()
        self._receiver.on_request(
            Head(method, self._target, version, headers, fields, keep_alive, expects_continue)
        )

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._body_bytes += size
        self.window_bytes += size
        self._receiver.on_request_body(body)

    def on_message_complete(self) -> None:
        if self._upgrade_framing is None:
            self.reading = _NOTHING
            self._feed_bytes = 0  # what follows in it belongs to the next request
            self._receiver.on_request_end()


def _check_encoding(headers: Headers) -> None:
    if any(value.lower() != b"chunked" for name, value in headers if name == b"transfer-encoding"):
        raise _refusal(501, "unsupported_encoding", "The only transfer encoding is chunked.")


def _check_expectation(headers: Headers) -> None:
    if any(value.lower() != b"100-continue" for name, value in headers if name == b"expect"):
        raise _refusal(417, "expectation_failed", "The only expectation is 100-continue.")


def _framing(fields: Fields) -> bytes:
    """The header that tells where the body ends."""
    if b"transfer-encoding" in fields:
        return b"transfer-encoding: chunked\r\n"
    length = fields.get(b"content-length")
    return b"" if length is None else b"content-length: %b\r\n" % length


def _refusal(status: int, code: str, message: str) -> Refusal:
    return Refusal(PublicError(status, code, message))


def _bad_request(message: str) -> Refusal:
    return _refusal(400, "bad_request", message)


def _head_too_large(message: str) -> Refusal:
    return _refusal(431, "head_too_large", message)

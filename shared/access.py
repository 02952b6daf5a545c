"""Who may ask at all: the access policy of a public listener, checked before anything else of a request.

A browser on this machine can be made to send requests here by any page it shows. What it can't be made to
do is lie about where the page came from: the Host it resolved (DNS rebinding), the page's Origin, and
Sec-Fetch-Site. Programs that are no browsers send a Host and nothing else of these.
"""

import ipaddress
from functools import lru_cache
from typing import Final, Protocol

from shared.errors import PublicError
from shared.headers import Fields, Headers

_SHOWN_CHARACTERS: Final = 80
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, not bound
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_PREFLIGHT_AGE_S: Final = 600


class Listener(Protocol):
    """What a listener's settings say of who may ask."""

    @property
    def host(self) -> str: ...
    @property
    def allowed_hosts(self) -> tuple[str, ...]: ...
    @property
    def cors_origins(self) -> tuple[str, ...]: ...


class Access:
    """The policy of one listener."""

    def __init__(self, server: Listener) -> None:
        self._hosts = {server.host.lower(), *(host.lower() for host in server.allowed_hosts)}
        self._origins = {origin.lower() for origin in server.cors_origins}
        # An address can't be rebound to another machine, only a name can. One who listens on every
        # address of the machine can't list them.
        self._any_address = server.host in _WILDCARDS
        # Clients send the same few hosts again and again.
        self._answers_for = lru_cache(maxsize=64)(self._is_our_host)

    def check(self, method: str, fields: Fields) -> Headers:
        """The headers that the answer must carry for the page that asked; none for anybody else.

        Raises PublicError: 400 without a Host, 403 for one, or for a page, that may not ask.
        """
        host = fields.get(b"host")
        if not host:
            raise PublicError(400, "missing_host", "The request has no Host header.")
        if not self._answers_for(host):
            raise PublicError(
                403,
                "host_not_allowed",
                f"This server does not answer for the host {shown(_text(host))}; "
                "allow it with server.allowed_hosts in config.toml.",
            )
        origin = fields.get(b"origin")
        if origin is None:
            if fields.get(b"sec-fetch-site") == b"cross-site" and not _is_navigation(method, fields):
                raise PublicError(403, "cross_site", "Pages of other sites may not ask this server.")
            return ()
        name = _text(origin)
        if name in self._origins:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"x-request-id, request-id, retry-after"),
                (b"vary", b"origin"),
            )
        if _is_same(name, _text(host)):
            return ()
        raise PublicError(
            403,
            "origin_not_allowed",
            f"Pages of {shown(name)} may not ask this server; "
            "allow them with server.cors_origins in config.toml.",
        )

    def _is_our_host(self, host: bytes) -> bool:
        name = host_name(_text(host))
        if name is None:
            return False
        if name in self._hosts or _is_loopback(name):
            return True
        return self._any_address and _is_address(name)


def _text(value: bytes) -> str:
    return value.decode("latin-1").lower()


def preflight(fields: Fields, allow: str) -> Headers:
    """The answer to a preflight request, beyond what `Access.check` gave: what the page may send."""
    headers = [
        (b"access-control-allow-methods", allow.encode()),
        (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
    ]
    if wanted := fields.get(b"access-control-request-headers"):
        headers.append((b"access-control-allow-headers", wanted))
    if fields.get(b"access-control-request-private-network") == b"true":
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers


def is_preflight(method: str, fields: Fields) -> bool:
    """Whether a browser asks if a page may send a request."""
    return method == "OPTIONS" and b"origin" in fields and b"access-control-request-method" in fields


def host_name(host: str) -> str | None:
    """The name or address in a Host header, without port, brackets and the root's dot; None if it is none."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = host.partition(":")
        name = name.removesuffix(".")
    return name if name and (not port or (port.isascii() and port.isdigit())) else None


@lru_cache(maxsize=64)
def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    """Whether the page came from the very host and port that it asks now.

    The scheme is not compared: a proxy before us may have taken off TLS.
    """
    scheme, separator, place = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    return bool(separator and default) and place.removesuffix(default or "") == host.removesuffix(
        default or ""
    )


def _is_navigation(method: str, fields: Fields) -> bool:
    """Whether somebody followed a link to here: it reads only, and the other page gets nothing of it."""
    return (
        method in ("GET", "HEAD")
        and fields.get(b"sec-fetch-mode") == b"navigate"
        and fields.get(b"sec-fetch-dest") == b"document"
    )


def shown(name: str) -> str:
    """What a client made up, in quotes, as short and plain as a message may have it."""
    plain = "".join(letter if letter.isprintable() else "�" for letter in name[:_SHOWN_CHARACTERS])
    return f"'{plain}{'…' if len(name) > _SHOWN_CHARACTERS else ''}'"

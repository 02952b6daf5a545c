"""The public TCP port: bound before anything else is started, so that a taken port costs nothing."""

import errno
import socket
from collections.abc import Callable

import psutil


class PortError(Exception):
    """Raised when the public port can't be bound; the message names the port and, if known, who holds it."""


def holder_of(port: int) -> str | None:
    """`name (pid N)` of the process that listens on `port`; None where the OS does not tell us."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens_on = getattr(connection.laddr, "port", None)  # an unbound socket has an empty address
            if connection.status == psutil.CONN_LISTEN and listens_on == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        # macOS shows other processes' connections to root only.
        return None
    return None


def bind_public(
    host: str, port: int, *, find_holder: Callable[[int], str | None] = holder_of
) -> socket.socket:
    """A listening, non-blocking TCP socket on `host`:`port`; port 0 takes a free one.

    Connections that arrive before the server accepts wait in the backlog. Raises PortError.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise PortError(f"can't listen on {host!r}: {error.strerror}") from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = find_holder(port)
            held = f" by {holder}" if holder else " by another process"
            raise PortError(
                f"port {port} on {host} is taken{held}; stop it, or choose another port with --port"
            ) from None
        raise PortError(f"can't listen on {host} port {port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def public_url(listener: socket.socket) -> str:
    """What to type into a client on this machine."""
    host, port = listener.getsockname()[:2]
    return url_of(host, port)


def url_of(host: str, port: int) -> str:
    """The same for an address that is, or would be, listened on."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  # it is compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""Streams an answer from the public port."""

import http.client
from collections.abc import Generator
from urllib.parse import urlsplit

from supervisor.cli.client import reason, send, told
from supervisor.cli.errors import RefusedError


def stream(url: str, target: str, body: object) -> Generator[bytes, None, None]:
    """The data of each server-sent event of `POST target`, as it comes.

    Leaving the iteration early closes the connection, which stops the work behind it. Raises RefusedError
    with the server's own sentence where there is one.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    try:
        response = send(connection, "POST", target, body)
        if response.status != 200:
            raise RefusedError(reason(response.status, response.read()))
        for line in _lines(response):
            if line.startswith(b"data: "):
                yield line[6:]
    except (OSError, http.client.HTTPException) as error:
        raise RefusedError(f"the connection to {url} was lost ({told(error)})") from None
    finally:
        connection.close()


def _lines(response: http.client.HTTPResponse) -> Generator[bytes, None, None]:
    # Not `for line in response`: that takes a connection that was cut for the end of the answer.
    rest = b""
    while data := response.read1():
        *lines, rest = (rest + data).split(b"\n")
        yield from lines

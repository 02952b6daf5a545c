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
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].strip()
    except (OSError, http.client.HTTPException) as error:
        raise RefusedError(f"the connection to {url} was lost ({told(error)})") from None
    finally:
        connection.close()

"""Talks to the running supervisor over its control socket."""

import contextlib
import http.client
import json
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.home import Home, HomeError, NoHomeError

ANSWER_S: Final = 10.0
"""How long an answer may take that only reads."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP/1.1 over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Held(NamedTuple):
    """An answer that is open: its lines, and the descriptor of its connection."""

    lines: Iterator[Any]
    descriptor: int
    end: Callable[[], None]
    """Ends the connection, whoever else has it, and with it the lines of a thread that reads them."""


class Client:
    """One supervisor. Methods raise RefusedError, with its own sentence where there is one."""

    def __init__(self, home: Home) -> None:
        self.home = home

    @classmethod
    def of(cls, path: Path) -> "Client":
        """The client for the state folder at `path`, which need not exist."""
        try:
            return cls(Home.find(path))
        except NoHomeError:
            raise not_running(path) from None
        except HomeError as error:
            raise RefusedError(str(error)) from None

    def get(self, target: str) -> Any:
        """The JSON that `GET target` answers with."""
        return self._ask("GET", target, None, ANSWER_S)

    def post(self, target: str, body: object = None, *, timeout_s: float | None = None) -> Any:
        """The JSON that `POST target` answers with, None where it has no body.

        No limit by default: a load takes as long as it takes.
        """
        return self._ask("POST", target, body, timeout_s)

    def delete(self, target: str) -> Any:
        """The JSON that `DELETE target` answers with."""
        return self._ask("DELETE", target, None, None)

    def act(self, model: str, action: str) -> Any:
        """`load` or `unload` a model, whatever is in its name."""
        return self.post(f"/api/models/{quote(model, safe='/')}/{action}")

    @contextlib.contextmanager
    def hold(self, target: str, body: object) -> Iterator[Held]:
        """The lines of JSON that `POST target` answers with, for as long as the block lasts.

        Leaving it ends the connection, whoever else has it. Raises RefusedError, also while lines are read.
        """
        connection = _UnixConnection(self.home.control_socket, None)
        held: socket.socket | None = None

        def end() -> None:
            if held is not None:
                with contextlib.suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)

        try:
            try:
                connection.connect()
                held = connection.sock
                response = send(connection, "POST", target, body)
                if response.status >= 400:
                    raise refusal(response.status, response.read())
            except (FileNotFoundError, ConnectionRefusedError):
                raise self._nobody_listens() from None
            except (OSError, http.client.HTTPException) as error:
                raise RefusedError(f"the supervisor ended before it had answered ({told(error)})") from None
            assert held is not None
            yield Held(_lines(response), held.fileno(), end)
        finally:
            end()
            connection.close()

    def _ask(self, method: str, target: str, body: object, timeout_s: float | None) -> Any:
        connection = _UnixConnection(self.home.control_socket, timeout_s)
        try:
            try:
                connection.connect()
            except (FileNotFoundError, ConnectionRefusedError):
                raise self._nobody_listens() from None
            response = send(connection, method, target, body)
            content = response.read()
            if response.status >= 400:
                raise refusal(response.status, content)
            return None if method == "POST" and not content else json.loads(content)
        except TimeoutError:
            raise RefusedError(
                f"the supervisor took more than {timeout_s:g} s to answer; its log is "
                f"{self.home.logs / 'supervisor.log'}"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RefusedError(f"the supervisor ended before it had answered ({told(error)})") from None
        finally:
            connection.close()

    def _nobody_listens(self) -> RefusedError:
        holder = self.home.holder()
        if holder is None:
            return not_running(self.home.path)
        pid = f" (pid {holder.pid})" if holder.pid else ""
        return RefusedError(
            f"the supervisor{pid} of {self.home.path} does not answer: it is starting or stopping, "
            f"or was started with --in-process; its log is {self.home.logs / 'supervisor.log'}"
        )


def not_running(home: Path) -> NotRunningError:
    """The refusal that says how to start one."""
    is_default = home == Path("~/.mlx-supervisor").expanduser()
    option = "" if is_default else f" --home {shlex.quote(str(home))}"
    return NotRunningError(f"no supervisor runs with {home}; start it with: mlx-supervisor start{option}")


def _lines(response: http.client.HTTPResponse) -> Iterator[Any]:
    try:
        while line := response.readline():
            yield json.loads(line)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RefusedError(f"the connection to the supervisor was lost ({told(error)})") from None


def send(
    connection: http.client.HTTPConnection, method: str, target: str, body: object
) -> http.client.HTTPResponse:
    """Send a request with `body` as JSON, unless it is None, and read the head of the answer."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if content is not None else {}
    connection.request(method, target, content, headers)
    return connection.getresponse()


def refusal(status: int, content: bytes) -> RefusedError:
    """What an answer that is an error says."""
    try:
        param = json.loads(content)["error"]["param"]
    except (ValueError, TypeError, KeyError):
        param = None
    return RefusedError(reason(status, content), param=param)


def reason(status: int, content: bytes) -> str:
    """The sentence in an error's body."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return f"the supervisor answered with status {status}"


def told(error: Exception) -> str:
    """What went wrong with a connection, in few words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

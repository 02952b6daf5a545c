"""Keeps what the relay passes on: the witness of a response that its client hears."""

import orjson

from shared.errors import PublicError
from supervisor.history.history import History
from supervisor.responses.answering import error_of
from supervisor.responses.transcript import Transcript
from supervisor.responses.turns import Resolved


class Recorder:
    """Of one response. What the client is told of its end is kept before it is told."""

    def __init__(self, request: Resolved, history: History) -> None:
        self._request = request
        self._history = history
        self._transcript = Transcript()
        self._pieces: list[bytes] = []
        self._done = False

    def warned(self, warnings: tuple[str, ...]) -> None:
        self._transcript.warnings = warnings

    def heard(self, data: bytes) -> None:
        if not self._request.asked.stream:
            self._pieces.append(data)
            return
        self._transcript.feed(data)
        if self._transcript.ended:
            self._keep()

    def ended(self) -> None:
        if not self._request.asked.stream:
            self._transcript.response = orjson.loads(b"".join(self._pieces))
        self._keep()

    def cut(self, error: PublicError) -> bytes:
        if self._transcript.response is None and not self._request.asked.stream:
            self._transcript.response = self._request.announced("in_progress")
        event = self._transcript.fail(error)
        self._keep()
        return event

    def refused(self, status: int, body: bytes) -> bytes:
        return self._transcript.fail(error_of(status, body))

    def left(self) -> None:
        """The client went away, and the worker has stopped."""
        if not self._done and self._transcript.response is not None:
            self._transcript.stop()
            self._keep()

    def _keep(self) -> None:
        response = self._transcript.response
        if response is None or self._done:
            return
        self._done = True
        if self._request.asked.stored:
            self._history.keep(response, self._request.turn(self._transcript.warnings))

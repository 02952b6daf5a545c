"""WebSocket mode of `/v1/responses`: turns of a conversation on one connection, one after the other.

The connection remembers its last responses, also those that are not stored, so a turn can go on from them
with its new items alone. Source: OpenAI's guide, "WebSocket mode", and its SDK's types.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from shared.errors import PublicError, invalid
from shared.headers import Fields, naming
from shared.request_ids import HEADER
from shared.responses.answer import event
from shared.responses.asked import parse_asked
from supervisor.database import DatabaseError
from supervisor.history.history import History
from supervisor.http.websocket import WebSocket
from supervisor.relay import Slots, Wanted
from supervisor.responses.answering import answer
from supervisor.responses.background import CANCELLED
from supervisor.responses.condensing import fitted
from supervisor.responses.failures import history_unavailable
from supervisor.responses.memory import Memory
from supervisor.responses.transcript import Transcript, payload
from supervisor.responses.turns import Resolved, resolve
from supervisor.telemetry.timelines import Mark, Timelines

_MAX_WAITING: Final = 16
"""Turns that may wait for the one in hand."""
_OURS: Final = ("type", "stream_id", "generate", "stream")
"""Fields of a message that are no fields of a request."""


class _Envelope(msgspec.Struct, frozen=True):
    """What is read of a message beside the request."""

    type: str
    stream_id: str | None = None
    generate: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None


class Session:
    """One connection."""

    def __init__(
        self,
        socket: WebSocket,
        *,
        history: History,
        pool: Slots,
        wanted: Callable[[bytes], Wanted],
        found: Callable[[str, Mark | None], None],
        fields: Fields,
        timelines: Timelines,
    ) -> None:
        """`fields` are the headers that the connection came with."""
        self._socket = socket
        self._history = history
        self._pool = pool
        self._wanted = wanted
        self._found = found
        self._fields = fields
        self._timelines = timelines
        self._memory = Memory()
        self._waiting: asyncio.Queue[tuple[str, float]] = asyncio.Queue(_MAX_WAITING)
        self._turns = 0

    async def run(self) -> None:
        """Until the client leaves; what it waits for then is stopped."""
        turns = asyncio.get_running_loop().create_task(self._take_turns(), name="turns of a socket")
        try:
            while (message := await self._socket.receive()) is not None:
                try:
                    self._waiting.put_nowait((message, time.monotonic()))
                except asyncio.QueueFull:
                    await self._refuse(
                        PublicError(429, "queue_full", f"{_MAX_WAITING} turns wait here already."), None
                    )
        finally:
            turns.cancel()
            await asyncio.wait([turns])

    async def _take_turns(self) -> None:
        while True:
            message, came = await self._waiting.get()
            self._turns += 1
            name = b"%b:%d" % (self._fields[HEADER], self._turns)
            mark = self._timelines.begin(name.decode(), "/v1/responses", came)
            status = CANCELLED
            try:
                status = await self._take_message(message, name, mark)
            finally:
                self._timelines.end(mark, status)

    async def _take_message(self, message: str, name: bytes, mark: Mark) -> int:
        """Returns the status that says how it went."""
        envelope = _Envelope("")
        try:
            envelope, body = _opened(message)
            await self._take_turn(envelope, body, name, mark)
        except PublicError as error:
            self._memory.forget(envelope.previous_response_id)
            await self._refuse(error, envelope.stream_id)
            return error.status
        except DatabaseError as error:
            refusal = history_unavailable(error)
            await self._refuse(refusal, envelope.stream_id)
            return refusal.status
        return 200

    async def _take_turn(self, envelope: _Envelope, body: bytes, name: bytes, mark: Mark) -> None:
        wanted = self._wanted(body)
        self._found(wanted.entry.id, mark)
        request = await resolve(parse_asked(wanted.body), wanted, self._history, self._memory)
        if envelope.generate is False:
            await self._prepare(request, envelope.stream_id)
            return
        if request.asked.truncation == "auto":
            request = await fitted(request, self._pool)
        transcript = Transcript()

        async def hear(events: list[bytes]) -> None:
            if transcript.ended:
                # Before the client knows: it may go on from it at once.
                self._keep(request, transcript)
            for one in events:
                if one.startswith(b"event: "):
                    await self._send(payload(one), envelope.stream_id)

        try:
            named = naming({**self._fields, HEADER: name})
            await answer(request, self._pool, transcript, hear, naming=named, mark=mark)
        except asyncio.CancelledError:
            if transcript.response is not None and not transcript.ended:
                transcript.stop()
                self._keep(request, transcript)
            raise

    def _keep(self, request: Resolved, transcript: Transcript) -> None:
        response = transcript.response
        if response is None:
            return
        if request.asked.stored:
            self._history.keep(response, request.turn(transcript.warnings))
        if response["status"] in ("completed", "incomplete"):
            self._memory.remember(response["id"], [*request.read(), *response["output"]])
        else:
            self._memory.forget(request.asked.previous_response_id)

    async def _prepare(self, request: Resolved, stream_id: str | None) -> None:
        """A turn without an answer: its input is what later ones go on from."""
        begun = request.announced("in_progress")
        done = {**begun, "status": "completed", "completed_at": begun["created_at"]}
        self._keep(request, Transcript(done))
        for number, (name, response) in enumerate(
            (("created", begun), ("in_progress", begun), ("completed", done))
        ):
            told = event(f"response.{name}", {"sequence_number": number, "response": response})
            await self._send(payload(told), stream_id)

    async def _refuse(self, error: PublicError, stream_id: str | None) -> None:
        told = orjson.loads(error.body())
        # As its guide has it: what is not there to go on from is the request's fault.
        status = 400 if error.code == "previous_response_not_found" else error.status
        await self._send(orjson.dumps({"type": "error", "status": status, **told}), stream_id)

    async def _send(self, message: bytes, stream_id: str | None) -> None:
        if stream_id is not None:
            message = b'%b,"stream_id":%b}' % (message.removesuffix(b"}"), orjson.dumps(stream_id))
        await self._socket.send(message)


def _opened(message: str) -> tuple[_Envelope, bytes]:
    """A message's envelope, and the request in it. Raises PublicError 400."""
    try:
        envelope = msgspec.json.decode(message, type=_Envelope)
        fields: dict[str, Any] = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise invalid(f"A message is an object with a `type`: {error}.", param="type") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PublicError(400, "invalid_json", f"The message is not valid JSON: {error}.") from None
    if envelope.type != "response.create":
        raise invalid(
            f"`type` is response.create; {envelope.type[:60]!r} is not supported.",
            param="type",
            code="unsupported_value",
        )
    if envelope.background:
        raise invalid("`background` is for HTTP; turns here have a connection.", param="background")
    for name in _OURS:
        fields.pop(name, None)
    return envelope, msgspec.json.encode(fields)

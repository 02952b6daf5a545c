"""The forwarding path: a request to its model's worker, and the answer back, event by event as it comes.

The request's head is always built anew from the few headers that a worker may know; its body goes on as
it is. Back-pressure holds both ways: the worker waits while the client reads slowly.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from shared import sse
from shared.errors import Api, PublicError
from shared.headers import HANDED_BACK, PASSED_ON
from supervisor.catalog.catalog import ModelEntry
from supervisor.http.exchange import Exchange, Work
from supervisor.pings import Ping, Pings
from supervisor.telemetry.timelines import Mark
from supervisor.workers.upstream import Upstream, UpstreamError, UpstreamResponse

FORWARDED: Final = frozenset(
    {
        b"/v1/chat/completions",
        b"/v1/completions",
        b"/v1/decisions",
        b"/v1/embeddings",
        b"/v1/messages",
        b"/v1/messages/count_tokens",
        b"/v1/systemone",
    }
)
"""Paths that workers answer, all by POST; the worker is asked for the very same path."""
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_EVENT_END: Final = b"\n\n"
_MAX_HELD_BYTES: Final = 64 * 1024
"""An unfinished event is held back up to here, so that an error frame never lands in the middle of one."""


class Slot(Protocol):
    """See `supervisor.workers.slots.Slot`."""

    @property
    def upstream(self) -> Upstream: ...
    @property
    def generation(self) -> int: ...
    def leave(self) -> None: ...
    async def failure(self) -> PublicError: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Slots(Protocol):
    """Who gives out slots: the pool."""

    def slot(self, entry: ModelEntry, *, after: int = 0) -> AbstractAsyncContextManager[Slot]: ...
    def slot_at_once(self, entry: ModelEntry) -> Slot | None: ...


class Wanted(msgspec.Struct, frozen=True):
    """What a body asks for: `body` is as its model's worker gets it."""

    entry: ModelEntry
    body: bytes
    stream: bool


class Witness(Protocol):
    """Hears a good answer as the client gets it, right before it does."""

    def warned(self, warnings: tuple[str, ...]) -> None:
        """The values of the `Warning` headers that the answer has, before all else."""

    def heard(self, data: bytes) -> None:
        """Whole events, or a piece of a body."""

    def ended(self) -> None:
        """That was all of it."""

    def cut(self, error: PublicError) -> bytes:
        """The worker failed in the middle. Returns the event that tells the client."""

    def refused(self, status: int, body: bytes) -> bytes:
        """The worker answered an error, and the stream has begun. Returns the event that tells the client."""


class Forwarded(msgspec.Struct, frozen=True):
    """A request that goes to a worker. `fields` are the client's headers by name, always with `x-request-id`;
    `extra` are headers that the answer carries besides the worker's."""

    exchange: Exchange
    entry: ModelEntry
    api: Api
    method: str
    target: bytes
    fields: Mapping[bytes, bytes]
    body: bytes
    extra: Sequence[tuple[bytes, bytes]] = ()
    ping: Ping | None = None
    """Keeps the answer alive, if a stream is asked for."""
    told: Sequence[tuple[bytes, bytes]] = ()
    """Headers of our own for the worker."""
    witness: Witness | None = None
    mark: Mark | None = None
    """Told when it has a place, and of warnings."""


async def forward(request: Forwarded, pool: Slots) -> None:
    """Answer `request` by its model's worker.

    A worker that dies before a byte of the answer went out is replaced once without the client's noticing.
    Raises PublicError when nothing went out, and ClientGone when the client left, in whatever phase.
    """
    relay = Relay(request, pool)
    if request.ping is None:
        await relay.run()
        return
    try:
        with Pings(request.exchange, request.ping, request.extra):
            await relay.run()
    except PublicError as error:
        if not request.exchange.started:
            raise
        # There were pings already.
        if request.witness is not None:
            request.exchange.finish(request.witness.cut(error))
        else:
            request.exchange.finish(error.frame(request.api, request.fields[b"x-request-id"].decode()))


class Relay:
    """One request on its way. `begin` takes it as far as it goes without a task, `run` from wherever it is to
    its end.

    | it has             | what happens                | then                                             |
    | ------------------ | --------------------------- | ------------------------------------------------ |
    | nothing            | a slot would be waited for  | `run` waits for it                               |
    | a slot             | no connection is idle       | `run` opens one                                  |
    | asked, and no task | all of the answer comes     | it is passed on: the end                         |
    | asked, and no task | something else of it comes  | `run` passes it on, or asks the next worker      |
    | asked, and no task | the client leaves           | the connection is closed, the slot is given back |
    """

    __slots__ = ("_answer", "_go_on", "_pool", "_request", "_response", "_slot")

    def __init__(self, request: Forwarded, pool: Slots) -> None:
        self._request = request
        self._pool = pool
        self._answer = _Answer(request)
        self._slot: Slot | None = None
        """Held from `begin` on."""
        self._response: UpstreamResponse | None = None
        """To what `begin` asked."""
        self._go_on: Callable[[Work], None] | None = None

    def begin(self, go_on: Callable[[Work], None]) -> None:
        """As `forward`, without a task for as long as nothing but the worker is waited for, which for a short
        answer is all the time. `go_on` is given the work of a task when one is needed."""
        request = self._request
        if request.ping is not None:
            go_on(forward(request, self._pool))
            return
        slot = self._slot = self._pool.slot_at_once(request.entry)
        if slot is not None:
            request.exchange.watch(self._left)
            if request.mark is not None:
                request.mark.placed()
            response = slot.upstream.send(request.method, request.target, self._headers(), request.body)
            if response is not None:
                self._response = response
                self._go_on = go_on
                response.on_arrival = self._arrived
                return
        go_on(self.run())

    def _arrived(self) -> None:
        """The answer has begun, or failed."""
        response, go_on, slot, exchange = self._response, self._go_on, self._slot, self._request.exchange
        assert response is not None and go_on is not None and slot is not None
        try:
            answered = self._answer.pass_on_whole(response)
        except Exception as error:
            exchange.fail(error)
            answered = True
        if answered:
            exchange.watch(None)
            slot.leave()
        else:
            go_on(self.run())

    def _left(self) -> None:
        """The client is gone, and no task works on its request."""
        self._request.exchange.watch(None)
        if self._response is not None:
            self._response.on_arrival = None
            self._response.close()
        if self._slot is not None:
            self._slot.leave()

    async def run(self) -> None:
        """See `forward`."""
        request = self._request
        failed = after = 0
        with request.exchange.while_connected():
            while True:
                async with self._slot or self._pool.slot(request.entry, after=after) as slot:
                    self._slot = None
                    response, self._response = self._response, None
                    try:
                        if response is None:
                            if request.mark is not None:
                                request.mark.placed()
                            response = await slot.upstream.request(
                                request.method, request.target, self._headers(), request.body
                            )
                        else:
                            await response.head()
                        try:
                            if not handed_back(response):
                                await self._answer.pass_on(response)
                                return
                            after = slot.generation
                        finally:
                            response.close()
                    except UpstreamError as error:
                        if self._answer.began:
                            self._answer.cut(await slot.failure())
                            return
                        if failed:
                            raise await slot.failure() from error
                        failed = after = slot.generation

    def _headers(self) -> list[tuple[bytes, bytes]]:
        fields = self._request.fields
        headers = [(name, fields[name]) for name in PASSED_ON if name in fields]
        headers += self._request.told
        return headers


def handed_back(response: UpstreamResponse) -> bool:
    """Whether the worker has no room for the request before it has made room itself: ask again."""
    return response.status == 503 and any(name == HANDED_BACK for name, _ in response.headers)


class _Answer:
    """What the client gets: the worker's answer, or as much of it as there is and word of its end."""

    __slots__ = ("_exchange", "_held", "_in_event", "_is_events", "_request", "_warned", "_witness", "began")

    def __init__(self, request: Forwarded) -> None:
        self._request = request
        self._exchange = request.exchange
        self.began = False
        """Some of the worker's answer went out, if only its head."""
        self._is_events = False
        self._in_event = False
        self._held = b""
        self._witness: Witness | None = None
        self._warned = False

    def pass_on_whole(self, response: UpstreamResponse) -> bool:
        """Pass on an answer all of which has come at once, as small ones do. False if it is another one, of
        which nothing went out."""
        if not response.ended or self._exchange.started or handed_back(response):
            return False
        headers = self._open(response)
        if self._is_events:
            return False
        self.began = True
        body = response.whole()
        if self._warned:
            self._heed(response)
        if self._witness is not None:
            self._witness.heard(body)
            self._witness.ended()
        self._exchange.answer(response.status, headers, body)
        return True

    async def pass_on(self, response: UpstreamResponse) -> None:
        """Raises UpstreamError when the worker's answer is cut."""
        if self.pass_on_whole(response):
            return
        headers = self._open(response)
        warnings = self._heed(response) if self._warned else ()
        exchange = self._exchange
        if self._is_events:
            self.began = True
            # Else it began with a ping, and all headers but the worker's warnings.
            if not exchange.started:
                exchange.begin(response.status, headers)
            elif warnings:
                exchange.write(warnings_in_stream(warnings))
            await response.pipe(self._pass_on_events)
        elif exchange.started:
            # There were pings, and then no stream: an error, which is now an event.
            body = await response.read()
            kind = "error" if self._request.api is Api.ANTHROPIC else None
            witness = self._request.witness
            told = None if witness is None else witness.refused(response.status, body)
            self._held = sse.event(body, kind) if told is None else told
        else:
            # With nothing sent yet, an answer that is cut at its start can still be asked for again.
            first = await anext(response, b"")
            self.began = True
            exchange.begin(response.status, headers)
            self._write(first)
            await response.pipe(self._write)
        if self._witness is not None:
            self._witness.ended()
        exchange.finish(self._held)

    def _open(self, response: UpstreamResponse) -> list[tuple[bytes, bytes]]:
        """Look at the head of the worker's answer. Returns the headers that the client gets."""
        self._witness = self._request.witness if response.status == 200 else None
        headers = []
        for header in response.headers:
            name = header[0]
            if name in _HOP_BY_HOP:
                continue
            if name == b"content-type":
                self._is_events = header[1].startswith(b"text/event-stream")
            elif name == b"warning":
                self._warned = True
            headers.append(header)
        headers += self._request.extra
        return headers

    def _heed(self, response: UpstreamResponse) -> tuple[str, ...]:
        """Note what the worker warns of."""
        warnings = response.warnings()
        if self._request.mark is not None:
            self._request.mark.warnings = warnings
        if self._witness is not None:
            self._witness.warned(warnings)
        return warnings

    def _write(self, data: bytes) -> asyncio.Future[None] | None:
        if self._witness is not None:
            self._witness.heard(data)
        return self._exchange.write(data)

    def _pass_on_events(self, chunk: bytes) -> asyncio.Future[None] | None:
        """Send whole events, and keep what has come of the next one."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if not chunk.endswith(_EVENT_END):
            end = chunk.rfind(_EVENT_END) + len(_EVENT_END)
            if len(chunk) - end > _MAX_HELD_BYTES:
                self._in_event = True
                return self._write(chunk)
            self._held = chunk[end:] if end >= len(_EVENT_END) else chunk
            chunk = chunk[: len(chunk) - len(self._held)]
            if not chunk:
                return None
        self._in_event = False
        return self._write(chunk)

    def cut(self, error: PublicError) -> None:
        """The worker failed in the middle: the client must not take what it has for all there is."""
        if not self._is_events:
            if self._witness is not None:
                self._witness.cut(error)
            self._exchange.abort()
            return
        if self._witness is None:
            frame = error.frame(self._request.api, self._request.fields[b"x-request-id"].decode())
        else:
            frame = self._witness.cut(error)
        self._exchange.finish(_EVENT_END + frame if self._in_event else frame)


def warnings_in_stream(warnings: Sequence[str]) -> bytes:
    """What stands for `Warning` headers in a stream of events that has begun without them."""
    return b"".join(sse.comment(f"warning: {warning}") for warning in warnings)

"""The forwarding path: a request to its model's worker, and the answer back, event by event as it comes.

The request's head is always built anew from the few headers that a worker may know; its body goes on as
it is. Back-pressure holds both ways: the worker waits while the client reads slowly.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from shared import sse
from shared.errors import Api, PublicError
from shared.headers import PASSED_ON
from supervisor.catalog.catalog import ModelEntry
from supervisor.http.exchange import Exchange
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
    """See `supervisor.workers.pool.Slot`."""

    @property
    def upstream(self) -> Upstream: ...
    @property
    def generation(self) -> int: ...
    async def failure(self) -> PublicError: ...


class Slots(Protocol):
    """Who gives out slots: the pool."""

    def slot(self, entry: ModelEntry, *, after: int = 0) -> AbstractAsyncContextManager[Slot]: ...


class Wanted(NamedTuple):
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


class Forwarded(NamedTuple):
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
    if request.ping is None:
        await _forward(request, pool)
        return
    try:
        with Pings(request.exchange, request.ping, request.extra):
            await _forward(request, pool)
    except PublicError as error:
        if not request.exchange.started:
            raise
        # There were pings already.
        if request.witness is not None:
            request.exchange.finish(request.witness.cut(error))
        else:
            request.exchange.finish(error.frame(request.api, request.fields[b"x-request-id"].decode()))


async def _forward(request: Forwarded, pool: Slots) -> None:
    headers = [(name, request.fields[name]) for name in PASSED_ON if name in request.fields]
    headers += request.told
    answer = _Answer(request)
    failed = 0
    with request.exchange.while_connected():
        while True:
            async with pool.slot(request.entry, after=failed) as slot:
                if request.mark is not None:
                    request.mark.placed()
                try:
                    response = await slot.upstream.request(
                        request.method, request.target, headers, request.body
                    )
                    try:
                        await answer.pass_on(response)
                    finally:
                        response.close()
                    return
                except UpstreamError as error:
                    if answer.began:
                        answer.cut(await slot.failure())
                        return
                    if failed:
                        raise await slot.failure() from error
                    failed = slot.generation


class _Answer:
    """What the client gets: the worker's answer, or as much of it as there is and word of its end."""

    def __init__(self, request: Forwarded) -> None:
        self._extra = request.extra
        self._exchange = request.exchange
        self._api = request.api
        self._request_id = request.fields[b"x-request-id"].decode()
        self.began = False
        """Some of the worker's answer went out, if only its head."""
        self._is_events = False
        self._in_event = False
        self._held = b""
        self._witness: Witness | None = None
        self._watching = request.witness
        self._mark = request.mark

    async def pass_on(self, response: UpstreamResponse) -> None:
        """Raises UpstreamError when the worker's answer is cut."""
        headers = []
        warned = False
        for header in response.headers:
            name, value = header
            if name == b"warning":
                warned = True
            if name == b"content-type" and value.startswith(b"text/event-stream"):
                self._is_events = True
            if name not in _HOP_BY_HOP:
                headers.append(header)
        headers += self._extra
        exchange = self._exchange
        self._witness = self._watching if response.status == 200 else None
        warnings = self._heed(response) if warned else ()
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
            kind = "error" if self._api is Api.ANTHROPIC else None
            told = None if self._watching is None else self._watching.refused(response.status, body)
            self._held = sse.event(body, kind) if told is None else told
        elif (whole := response.whole()) is not None:
            self._answer(response.status, headers, whole)
            return
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

    def _heed(self, response: UpstreamResponse) -> tuple[str, ...]:
        """Note what the worker warns of."""
        warnings = response.warnings()
        if self._mark is not None:
            self._mark.warnings = warnings
        if self._witness is not None:
            self._witness.warned(warnings)
        return warnings

    def _answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """All of it has come at once, as small answers do."""
        self.began = True
        if self._witness is not None:
            self._witness.heard(body)
            self._witness.ended()
        self._exchange.answer(status, headers, body)

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
            frame = error.frame(self._api, self._request_id)
        else:
            frame = self._witness.cut(error)
        self._exchange.finish(_EVENT_END + frame if self._in_event else frame)


def warnings_in_stream(warnings: Sequence[str]) -> bytes:
    """What stands for `Warning` headers in a stream of events that has begun without them."""
    return b"".join(sse.comment(f"warning: {warning}") for warning in warnings)

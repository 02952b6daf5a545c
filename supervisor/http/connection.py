"""An HTTP/1.1 server's connection: answers in order, time limits, and how it ends."""

import asyncio
import functools
import logging
import math
import select
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from shared.errors import PublicError
from supervisor.http.exchange import HIGH_WATER_BYTES, Exchange, Handler, Work
from supervisor.http.reader import Head, Limits, Reading, Refusal, RequestReader
from supervisor.http.refused import Refused
from supervisor.http.upgraded import Upgraded

log = logging.getLogger(__name__)

# An enumeration's members are looked up slowly through its name.
_NOTHING: Final = Reading.NOTHING
_HEAD: Final = Reading.HEAD
_BODY: Final = Reading.BODY

_MAX_PIPELINED: Final = 8
_LINGER_S: Final = 2.0
"""How long what a refused client still sends is read and dropped. Closing at once would reset the connection,
and the client's kernel would throw the refusal away unread."""
_PROBES_S: Final = (0.005, 0.05, 1.0)
"""When to look whether a half-closed client is gone: for one nearby, farther off; then again and again."""


class Registry:
    """What the connections of one server share."""

    def __init__(
        self,
        handler: Handler,
        keep_alive_s: float,
        limits: Limits,
        on_refused: Callable[[bytes, int], None],
    ) -> None:
        self.handler = handler
        self.on_refused = on_refused
        self.keep_alive_s = keep_alive_s
        self.limits = limits
        self.connections: set[HttpConnection] = set()
        self.open: set[Exchange] = set()
        """Requests that are being answered."""
        self._rested: asyncio.Future[None] | None = None

    def over(self, exchange: Exchange) -> None:
        """Nothing is done for it any more."""
        self.open.discard(exchange)
        if self._rested is not None and not self.open and not self._rested.done():
            self._rested.set_result(None)

    async def rested(self, timeout_s: float) -> None:
        """Wait until no request is being answered, so long at most."""
        if self.open:
            self._rested = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._rested}, timeout=timeout_s)


class HttpConnection(asyncio.Protocol):
    """One client's connection. Requests may be pipelined: they are answered in order, one at a time."""

    transport: asyncio.Transport

    def __init__(self, registry: Registry) -> None:
        self.blocked: asyncio.Future[None] | None = None
        self._registry = registry
        self.loop = asyncio.get_running_loop()
        self._reader = RequestReader(self, registry.limits)
        self._exchanges: deque[Exchange] = deque()
        self._refusal: Refused | None = None
        self._closing = False
        self._deaf = False
        """What comes is dropped."""
        self._half_closed = False
        self._read_paused = False
        self._client: tuple[str, int] | None = None
        # One timer at most; a later deadline does not touch it, so a busy connection never does.
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._probe_timer: asyncio.TimerHandle | None = None
        self._upgraded: Upgraded | None = None
        """What it speaks now is not HTTP."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        client = transport.get_extra_info("peername")
        if isinstance(client, tuple):
            self._client = (client[0], client[1])
        self._registry.connections.add(self)
        self._set_deadline(self._registry.keep_alive_s)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._upgraded is not None:
            self._upgraded.feed(data)
            return
        try:
            self._reader.feed(data)
        except Refusal as refusal:
            self._refuse(refusal.error)
            self._begin_next()
            return
        reader = self._reader
        if reader.new_phase or reader.reading is _NOTHING:
            self._begin_phase()
        self._begin_next()
        if self._exchanges or self._read_paused:
            self._throttle()

    def eof_received(self) -> bool:
        """Keep a half-closed connection while an answer is due, if the client turns out to be there still."""
        if self._upgraded is not None:
            self._upgraded.end()
            return False
        if self._exchanges and not self._exchanges[-1].body_complete:
            self._exchanges.pop().lose()
        self._deaf = True
        # Whoever uses a Unix socket is one of ours, and closes it to say that it is gone.
        if self._client is None or not self._exchanges:
            self._lose()
            return False
        self._half_closed = True
        self._deadline = math.inf
        self._probe(0)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._registry.connections.discard(self)
        self._deaf = True
        for timer in (self._timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._probe_timer = None
        self._lose()
        self.resume_writing()
        if self._upgraded is not None:
            self._upgraded.end()

    def pause_writing(self) -> None:
        if self.blocked is None:
            self.blocked = self.loop.create_future()
        if self._upgraded is not None:
            self._upgraded.pause()

    def resume_writing(self) -> None:
        blocked, self.blocked = self.blocked, None
        if blocked is not None and not blocked.done():
            blocked.set_result(None)
        if self._upgraded is not None:
            self._upgraded.resume()

    # Called by the reader.

    def on_request(self, head: Head) -> None:
        keep_alive = head.keep_alive and not self._closing
        self._exchanges.append(Exchange(self, head, keep_alive=keep_alive, client=self._client))

    def on_request_body(self, body: bytes) -> None:
        if self._exchanges:
            self._exchanges[-1].feed(body)

    def on_request_end(self) -> None:
        if self._exchanges:
            self._exchanges[-1].end_body()

    # Answering

    def _begin_next(self, _: object = None) -> None:
        """Hand the first request to the application, unless it has it; then tell it of the body that it waits
        for. Not while the client reads too slowly what was sent to it before: then requests pile up, until no
        more are read."""
        if not self._exchanges:
            return
        exchange = self._exchanges[0]
        try:
            if exchange.begun:
                if exchange.body_complete and exchange.when_whole is not None:
                    told, exchange.when_whole = exchange.when_whole, None
                    told()
                return
            if self.blocked is not None:
                self.blocked.add_done_callback(self._begin_next)
                return
            exchange.begun = True
            self._registry.open.add(exchange)
            work = self._registry.handler(exchange)
        except Exception as error:
            self.failed(exchange, error)
        else:
            if work is not None:
                self.go_on(exchange, work)

    def go_on(self, exchange: Exchange, work: Work) -> None:
        """Called by the exchange in turn, or for it, when a task is to do the rest."""
        exchange.task = self.loop.create_task(work)
        exchange.task.add_done_callback(functools.partial(self._worked, exchange))

    def _worked(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        exchange.task = None
        if task.cancelled():
            self.abort()
        elif (error := task.exception()) is not None:
            self.failed(exchange, error)
        elif not exchange.complete and not exchange.gone:
            self.abort()
        self.over(exchange)

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """Answer that something went wrong here, or cut what has begun."""
        log.error("the application failed on %s %s", exchange.method, exchange.path, exc_info=error)
        if self._upgraded is not None or (exchange.started and not exchange.complete):
            self.abort()
        elif not exchange.started:
            public = PublicError(500, "internal_error", "This is a fault of the server, not of the request.")
            exchange.answer(public.status, public.headers(), public.body())

    def over(self, exchange: Exchange) -> None:
        """Called by the exchange when it ends without a task."""
        self._registry.over(exchange)
        exchange.when_whole = None
        told, exchange.when_over = exchange.when_over, None
        if told is not None:
            told()

    def upgraded(self, exchange: Exchange) -> Upgraded:
        """Called by the exchange in turn when the rest of the connection is not HTTP."""
        self._exchanges.remove(exchange)
        self._deadline = math.inf
        self._upgraded = Upgraded(self.transport)
        return self._upgraded

    def finished(self, exchange: Exchange) -> None:
        """Called by the exchange in turn when its answer is complete."""
        self._exchanges.popleft()
        if not exchange.body_complete:
            self._linger()
        elif not exchange.keep_alive:
            self._deaf = True
            self.transport.close()
        elif self._exchanges:
            # Not from in here: answers that need no waiting would call each other.
            self.loop.call_soon(self._begin_next)
            self._throttle()
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._half_closed:
            self.transport.close()
        elif self._reader.reading is _NOTHING:
            self._set_deadline(self._registry.keep_alive_s)

    def body_taken(self) -> None:
        """Called by an exchange whose body so far was read by the application."""
        if self._read_paused:
            self._throttle()

    def _throttle(self) -> None:
        """Read no more while too much waits for the application."""
        exchanges = self._exchanges
        full = len(exchanges) >= _MAX_PIPELINED or (
            len(exchanges) > 0 and exchanges[-1].buffered_bytes > HIGH_WATER_BYTES
        )
        if full is not self._read_paused and not self.transport.is_closing():
            self._read_paused = full
            if full:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # Ending

    def _refuse(self, error: PublicError) -> None:
        """End the connection with an error, in the right order behind the answers that are due."""
        self._deaf = True
        self._deadline = math.inf
        broken: Exchange | None = None
        if self._exchanges and not self._exchanges[-1].body_complete:
            broken = self._exchanges.pop()
            broken.lose(error.status)
            if broken.started:
                self.abort()
                return
        self._refusal = Refused(error, broken)
        if not self._exchanges:
            self._say(self._refusal)

    def _say(self, refusal: Refused) -> None:
        if refusal.uncounted_path is not None:
            self._registry.on_refused(refusal.uncounted_path, refusal.error.status)
        self.transport.write(refusal.answer())
        self._linger()

    def abort(self) -> None:
        """Cut the connection, whatever is due on it."""
        self._deaf = True
        self.transport.abort()
        self._lose()

    def shutdown(self) -> None:
        """Close when the answers that are due have gone out; at once if there is none."""
        self._closing = True
        if self._upgraded is not None:
            self._upgraded.end()
            return
        if not self._exchanges:
            self._deaf = True
            self.transport.close()
        for exchange in self._exchanges:
            exchange.keep_alive = False

    def _lose(self) -> None:
        for exchange in self._exchanges:
            exchange.lose()
        self._exchanges.clear()

    def _linger(self) -> None:
        """Say that nothing follows, and close when the client has seen it or time is up."""
        self._deaf = True
        self._lose()
        if self.transport.is_closing():
            return
        if self._half_closed or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._throttle()
        self._set_deadline(_LINGER_S)

    # Time

    def _begin_phase(self) -> None:
        reader = self._reader
        reader.new_phase = False
        reading = reader.reading
        if reading is _HEAD:
            self._set_deadline(self._registry.limits.head_s)
        elif reading is _BODY:
            reader.window_bytes = 0
            self._set_deadline(self._registry.limits.body_window_s)
        elif self._exchanges:
            self._deadline = math.inf
        else:
            self._set_deadline(self._registry.keep_alive_s)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._timer_at > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._deadline
            self._timer = self.loop.call_at(self._deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        left_s = self._deadline - self.loop.time()
        if math.isinf(left_s):
            return
        if left_s > 0:
            self._set_deadline(left_s)
        elif self._deaf or self._reader.reading is _NOTHING:
            self.transport.abort()
        elif self._reader.reading is _HEAD:
            self._refuse(_too_slow("The request's head took too long."))
        elif self._is_body_slow():
            self._refuse(_too_slow("The request's body came too slowly."))
        else:
            self._begin_phase()

    def _is_body_slow(self) -> bool:
        if self._read_paused or (self._exchanges and self._exchanges[-1].expects_continue):
            return False  # it waits for us
        limits = self._registry.limits
        return self._reader.window_bytes < limits.body_window_s * limits.body_rate_bytes_s

    def _probe(self, number: int) -> None:
        """Find out whether a client that sends no more still listens.

        A client that closed and one that only shut down its sending side look the same until something is
        sent to it: then the first one's kernel resets the connection.
        """
        if self.transport.is_closing() or not self._exchanges:
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):  # an error or a hang-up
            self.abort()
            return
        self._exchanges[0].probe()
        wait_s = _PROBES_S[min(number, len(_PROBES_S) - 1)]
        self._probe_timer = self.loop.call_later(wait_s, self._probe, number + 1)


def _too_slow(message: str) -> PublicError:
    return PublicError(408, "too_slow", message)

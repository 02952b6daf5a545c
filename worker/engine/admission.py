"""Who may run: a bounded line of requests and leases in front of the rows of the batch.

Pure bookkeeping on the event loop: no tasks, no clocks. Requests and leases stand in one line in the order in
which they came. A lease at its head waits until no row runs, then holds the engine until it is released;
whatever came after it waits.

A request whose row has no room in memory beside those that run, or wants another adapter than they have, lets
later ones pass, but only so many: then all wait until it can run. One whose row alone needs more than there
is asks for it, and waits until there is so much, or until it is known that there never will be.

A row that grows beyond what it was promised asks in time for more (see `running`). Until it has that, nobody
who came later begins. One that came to the end of its promise, or made room for one that did, stands in the
line again where it stood.
"""

import bisect
import itertools
from collections.abc import Callable
from typing import Final

from shared.errors import PublicError
from shared.headers import HANDED_BACK
from shared.sizes import format_size
from worker.engine.needs import Needs
from worker.engine.running import Running
from worker.engine.turns import Lease, Terms, Turn

_PASSES: Final = 16
"""How many requests may be taken before one that came earlier and does not fit yet."""


class Admission:
    """`rows` may run at once, `queue` more may wait."""

    def __init__(self, *, rows: int, queue: int) -> None:
        self._capacity = rows + queue
        self._preparing: set[Turn] = set()
        self._line: list[Turn | Lease] = []
        self._own: list[Turn] = []
        """Of the lease's holder."""
        self._places = itertools.count(1)
        self._running = Running(rows)
        self._holder: Lease | None = None
        self._on_idle: list[Callable[[], None]] = []
        self._asking: Turn | None = None
        """Waits for more memory than there is for it."""
        self._told = (0, False, False)
        self._refusing = False
        self.on_want: Callable[[], None] = lambda: None
        """Called when `wanted_bytes` has changed, or what is told of it."""
        self.draining = False

    def limit(self, needs: Needs, terms: Terms) -> None:
        """From now on let rows, with what they hold, run only as `terms` allow. What runs already goes on."""
        self._running.needs = needs
        self._running.terms = terms
        self._give_up(lambda turn: self._refusal(self._running.length(turn)))
        self._advance()

    def check(self, tokens: int) -> None:
        """Raises PublicError 507 when a row of so many tokens could not even run alone."""
        if (error := self._refusal(tokens)) is not None:
            raise error

    def _refusal(self, tokens: int) -> PublicError | None:
        running = self._running
        if not running.never_fits([tokens]):
            return None
        needed, terms = running.needs.batch_bytes([tokens]), running.terms
        held = ", ".join(f"{model} {format_size(size)}" for model, size in sorted(terms.pinned.items()))
        beside = f" beside the pinned models ({held})" if held else ""
        return PublicError(
            507,
            "does_not_fit",
            f"{tokens} tokens of prompt and answer take {format_size(needed)} of memory, and there are "
            f"{format_size(terms.most_bytes)} for it{beside}. Shorten the prompt or lower max_tokens.",
        )

    @property
    def wanted_bytes(self) -> int:
        """What all rows would hold with more for one that runs, or the row that waits for more than there is;
        0 if neither is asked for."""
        if lengths := self._running.wanted():
            return self._running.needs.batch_bytes(lengths)
        return 0 if self._asking is None else self._alone_bytes(self._asking)

    @property
    def wants_to_go_on(self) -> bool:
        """Whether that is wanted for a request that has begun."""
        return bool(self._running.wanted()) or (self._asking is not None and self._asking.begun())

    @property
    def stalled(self) -> bool:
        """Whether no row runs until one that has begun is given what it wants."""
        return not len(self._running) and self.wants_to_go_on

    @property
    def rows_bytes(self) -> int:
        """What the running rows will hold, as far as they were let."""
        return self._running.bytes

    @property
    def capacity(self) -> int:
        """Requests that may run and wait together."""
        return self._capacity

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        """Admitted and not running."""
        return len(self._preparing) + len(self._waiting())

    @property
    def in_flight(self) -> int:
        return self.running + self.queued

    @property
    def leases(self) -> int:
        """Held or waited for."""
        return (self._holder is not None) + sum(isinstance(place, Lease) for place in self._line)

    @property
    def leased(self) -> bool:
        return self._holder is not None

    def using(self, adapter: str) -> int:
        """Requests in flight that run with this adapter."""
        turns = (*self._preparing, *self._running, *self._waiting())
        return sum(turn.adapter == adapter for turn in turns)

    def _waiting(self) -> list[Turn]:
        return [*self._own, *(place for place in self._line if isinstance(place, Turn))]

    def admit(self, turn: Turn) -> None:
        """Let a request in; it takes its place in the line with `ready`, or goes with `leave`.

        Raises PublicError 503 while draining and 429 when the line is full.
        """
        if self.draining:
            raise _draining()
        if self.in_flight >= self._capacity:
            raise PublicError(
                429,
                "queue_full",
                f"{self.in_flight} requests are running or waiting for this model already; try again later.",
                retry_after_s=1,
            )
        self._preparing.add(turn)

    def ready(self, turn: Turn) -> None:
        """The request is prepared and wants a row."""
        self._preparing.discard(turn)
        turn.place = next(self._places)
        self._line.append(turn)
        self._advance()

    def run_under(self, lease: Lease, turn: Turn) -> None:
        """Start a row of the lease's holder, past the line."""
        assert lease is self._holder
        turn.place = next(self._places)
        turn.own = True
        self._own.append(turn)
        self._advance()

    def want(self, turn: Turn, tokens: int) -> None:
        """The row, which runs, should be promised memory for so many tokens."""
        self._running.want(turn, tokens)
        self._advance()

    def can_go_on(self, tokens: int) -> bool:
        """Whether there may be memory, now or later, for more than so many tokens of one row."""
        return self._running.can_go_on(tokens)

    def stall(self, turn: Turn, tokens: int) -> None:
        """The row is out of the batch before its end, with so many tokens: it goes on when there is room."""
        self._running.end(turn)
        turn.reached = tokens
        line = self._own if turn.own and self._holder is not None else self._line
        bisect.insort(line, turn, key=lambda place: place.place)
        self._advance()

    def leave(self, turn: Turn) -> None:
        """The request is over: its row is out of the batch, or it never had one."""
        self._preparing.discard(turn)
        self._running.end(turn)
        self._take_out(turn)
        self._advance()

    def is_running(self, turn: Turn) -> bool:
        return turn in self._running

    def lease(self, lease: Lease) -> None:
        """Stand in line for exclusive use. Raises PublicError 503 while draining."""
        if self.draining:
            raise _draining()
        lease.place = next(self._places)
        self._line.append(lease)
        self._advance()

    def release(self, lease: Lease) -> None:
        """Give the lease back, or stop waiting for it."""
        if self._holder is lease:
            self._holder = None
        elif lease in self._line:
            self._line.remove(lease)
        self._advance()

    def drain(self, on_idle: Callable[[], None]) -> None:
        """Admit nothing from now on; `on_idle` is called once, when nothing is in flight any more."""
        self.draining = True
        self._on_idle.append(on_idle)
        self._advance()

    def _advance(self) -> None:
        if self._refusing:
            return
        self._fill()
        if self._running.terms.back:
            self._give_up(self._return)
            self._fill()
        told = (self.wanted_bytes, self.wants_to_go_on, self.stalled)
        if self._told != told:
            self._told = told
            self.on_want()
        if not self.in_flight:
            waiting, self._on_idle = self._on_idle, []
            for call in waiting:
                call()

    def _fill(self) -> None:
        """Start what may run now."""
        while self._holder is None and self._line and isinstance(head := self._line[0], Lease):
            if len(self._running):
                break
            del self._line[0]
            self._holder = head
            head.granted()
        self._running.grow()
        while (turn := self._next()) is not None:
            self._take_out(turn)
            self._running.start(turn)

    def _take_out(self, turn: Turn) -> None:
        """Out of the line, if it stands in it."""
        if turn in self._line:
            self._line.remove(turn)
        elif turn in self._own:
            self._own.remove(turn)
        if turn is self._asking:
            self._asking = None

    def _give_up(self, why: Callable[[Turn], PublicError | None]) -> None:
        """Let those go that wait and for whom there is an error. They are in flight until they have left."""
        for turn in self._waiting():
            # One that goes may take others of its request with it.
            if (turn in self._line or turn in self._own) and (error := why(turn)) is not None:
                self._take_out(turn)
                self._preparing.add(turn)
                self._refusing = True
                try:
                    turn.refuse(error)
                finally:
                    self._refusing = False

    def _return(self, turn: Turn) -> PublicError | None:
        """Why it can't wait here any longer."""
        running = self._running
        if running.fits([running.length(turn)]) or (turn.begun() and not running.terms.cut):
            return None
        return _handed_back(self._alone_bytes(turn), running.terms.room_bytes)

    def _alone_bytes(self, turn: Turn) -> int:
        return self._running.needs.batch_bytes([self._running.length(turn)])

    def _next(self) -> Turn | None:
        """The first in the line that can run beside the running rows."""
        running, passed = self._running, list[Turn]()
        growing = running.growing
        for place in self._line if self._holder is None else self._own:
            if isinstance(place, Lease):
                return None
            if growing is not None and growing.place < place.place:
                # It would take what the other one, which came before it, is about to need.
                return None
            if running.has_room_for(place):
                for earlier in passed:
                    earlier.passed += 1
                return place
            if not running.fits([running.length(place)]):
                if self._may_ask(place):
                    self._asking = place
            elif place.reached and running.make_way(place):
                return None
            elif place is self._asking:
                # What it asked for is there, and is kept from others: it goes next.
                place.passed = _PASSES
            if place.passed >= _PASSES:
                return None
            passed.append(place)
        return None

    def _may_ask(self, turn: Turn) -> bool:
        """Whether more may be asked for the row, which is too long even alone. What has begun asks first."""
        if self._asking is not None and self._asking.begun():
            return False
        return turn.begun() or (self._asking is None and not len(self._running))


def _draining() -> PublicError:
    return PublicError(
        503, "draining", "This model is being unloaded; the next request loads it again.", retry_after_s=1
    )


def _handed_back(needed_bytes: int, room_bytes: int) -> PublicError:
    return PublicError(
        503,
        "no_room",
        f"The prompt and its answer take {format_size(needed_bytes)} of memory, there are "
        f"{format_size(room_bytes)} for it, and other models wait for room too; try again.",
        retry_after_s=1,
        headers=((HANDED_BACK, b"1"),),
    )

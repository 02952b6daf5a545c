"""Who may run: a bounded line of requests and leases in front of the rows of the batch.

Pure bookkeeping on the event loop: no tasks, no clocks. Requests and leases stand in one line in the order in
which they came. A lease at its head waits until no row runs, then holds the engine until it is released;
whatever came after it waits.

A request whose row has no room in memory beside those that run, or wants another adapter than they have, lets
later ones pass, but only so many: then all wait until it can run. One whose row alone needs more than there
is asks for it, and waits until there is so much, or until it is known that there never will be.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from shared.errors import PublicError
from shared.headers import HANDED_BACK
from shared.sizes import format_size
from worker.engine.needs import Needs

_PASSES: Final = 16
"""How many requests may be taken before one that came earlier and does not fit yet."""


class Turn:
    """One request's place. `start` is called when a row is free for it, or `refuse` when none ever will be;
    `length` is what it will have, in tokens, as far as can be told now. `adapter` is the identity of the one
    it runs with, "" for none."""

    __slots__ = ("adapter", "length", "passed", "refuse", "start")

    def __init__(
        self,
        start: Callable[[], None],
        length: Callable[[], int] = lambda: 0,
        *,
        adapter: str = "",
        refuse: Callable[[PublicError], None] = lambda error: None,
    ) -> None:
        self.start = start
        self.length = length
        self.refuse = refuse
        self.adapter = adapter
        self.passed = 0


class Lease:
    """Exclusive use of the engine. `granted` is called when nothing runs any more."""

    __slots__ = ("granted",)

    def __init__(self, granted: Callable[[], None]) -> None:
        self.granted = granted


class Terms(msgspec.Struct, frozen=True):
    """What memory there is for rows, in bytes. 0 is no bound."""

    room_bytes: int = 0
    """For all that run together."""
    most_bytes: int = 0
    """What there may be at other times: a row that needs more is refused."""
    asks: bool = False
    """Whether a row that needs more than there is waits for it. Else it runs alone."""
    back: bool = False
    """It is given back instead: nobody could give it more before this model has left."""
    pinned: dict[str, int] = {}
    """Models that always stay beside this one, and what they hold."""


class Admission:
    """`rows` may run at once, `queue` more may wait."""

    def __init__(self, *, rows: int, queue: int) -> None:
        self._rows = rows
        self._queue = queue
        self._preparing: set[Turn] = set()
        self._line: deque[Turn | Lease] = deque()
        self._own: deque[Turn] = deque()
        """Of the lease's holder."""
        self._running: set[Turn] = set()
        self._holder: Lease | None = None
        self._on_idle: list[Callable[[], None]] = []
        self._needs = Needs()
        self._terms = Terms()
        self._asking: Turn | None = None
        """Waits for more memory than there is for it."""
        self._wanted_bytes = 0
        self._refusing = False
        self.on_want: Callable[[], None] = lambda: None
        """Called when `wanted_bytes` has changed."""
        self.draining = False

    def limit(self, needs: Needs, terms: Terms) -> None:
        """From now on let rows, with what they hold, run only as `terms` allow. What runs already goes on."""
        self._needs = needs
        self._terms = terms
        for turn in self._waiting():
            if (error := self._refusal(turn.length())) is not None:
                self._refuse(turn, error)
        self._advance()

    def check(self, tokens: int) -> None:
        """Raises PublicError 507 when a row of so many tokens could not even run alone."""
        if (error := self._refusal(tokens)) is not None:
            raise error

    def _refusal(self, tokens: int) -> PublicError | None:
        needed, terms = self._needs.batch_bytes([tokens]), self._terms
        if not needed > terms.most_bytes > 0 and not (needed and terms.asks and not terms.most_bytes):
            return None
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
        """What the row that asks for more would hold; 0 when none does."""
        return 0 if self._asking is None else self._needs.batch_bytes([self._asking.length()])

    @property
    def rows_bytes(self) -> int:
        """What the running rows will hold."""
        return self._needs.batch_bytes([turn.length() for turn in self._running])

    @property
    def capacity(self) -> int:
        """Requests that may run and wait together."""
        return self._rows + self._queue

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        """Admitted and not running."""
        return len(self._preparing) + sum(1 for _ in self._waiting())

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

    def _waiting(self) -> Iterable[Turn]:
        return (*self._own, *(place for place in self._line if isinstance(place, Turn)))

    def admit(self, turn: Turn) -> None:
        """Let a request in; it takes its place in the line with `ready`, or goes with `leave`.

        Raises PublicError 503 while draining and 429 when the line is full.
        """
        if self.draining:
            raise _draining()
        if self.in_flight >= self._rows + self._queue:
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
        self._line.append(turn)
        self._advance()

    def run_under(self, lease: Lease, turn: Turn) -> None:
        """Start a row of the lease's holder, past the line."""
        assert lease is self._holder
        self._own.append(turn)
        self._advance()

    def leave(self, turn: Turn) -> None:
        """The request is over: its row is out of the batch, or it never had one."""
        self._preparing.discard(turn)
        self._running.discard(turn)
        self._take_out(turn)
        self._advance()

    def is_running(self, turn: Turn) -> bool:
        return turn in self._running

    def lease(self, lease: Lease) -> None:
        """Stand in line for exclusive use. Raises PublicError 503 while draining."""
        if self.draining:
            raise _draining()
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
        if self._terms.back:
            for turn in self._waiting():
                if not self._fits([turn.length()]):
                    needed = self._needs.batch_bytes([turn.length()])
                    self._refuse(turn, _handed_back(needed, self._terms.room_bytes))
            self._fill()
        if self._wanted_bytes != self.wanted_bytes:
            self._wanted_bytes = self.wanted_bytes
            self.on_want()
        if not self.in_flight:
            waiting, self._on_idle = self._on_idle, []
            for call in waiting:
                call()

    def _fill(self) -> None:
        """Start what may run now."""
        while self._holder is None and self._line and isinstance(head := self._line[0], Lease):
            if self._running:
                break
            self._line.popleft()
            self._holder = head
            head.granted()
        while len(self._running) < self._rows and (turn := self._next()) is not None:
            self._take_out(turn)
            self._running.add(turn)
            turn.start()

    def _take_out(self, turn: Turn) -> None:
        """Out of the line, if it stands in it."""
        if turn in self._line:
            self._line.remove(turn)
        elif turn in self._own:
            self._own.remove(turn)
        if turn is self._asking:
            self._asking = None

    def _refuse(self, turn: Turn, error: PublicError) -> None:
        """Let it go. It is in flight until it says that it has left."""
        self._take_out(turn)
        self._preparing.add(turn)
        self._refusing = True
        try:
            turn.refuse(error)
        finally:
            self._refusing = False

    def _next(self) -> Turn | None:
        """The first in the line that can run beside the running rows."""
        passed: list[Turn] = []
        lengths = [turn.length() for turn in self._running]
        adapter = next((turn.adapter for turn in self._running), None)
        for place in self._line if self._holder is None else self._own:
            if isinstance(place, Lease):
                return None
            alike = adapter is None or place.adapter == adapter
            if alike and self._fits([*lengths, place.length()]):
                for earlier in passed:
                    earlier.passed += 1
                return place
            if self._asking is None and not lengths:
                self._asking = place
            elif place is self._asking and self._fits([place.length()]):
                # What it asked for is there, and is kept from others: it goes next.
                place.passed = _PASSES
            if place.passed >= _PASSES:
                return None
            passed.append(place)
        return None

    def _fits(self, lengths: list[int]) -> bool:
        alone = len(lengths) == 1 and not self._terms.asks
        return alone or self._needs.batch_bytes(lengths) <= self._terms.room_bytes


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

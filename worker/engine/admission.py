"""Who may run: a bounded line of requests and leases in front of the rows of the batch.

Pure bookkeeping on the event loop: no tasks, no clocks. Requests and leases stand in one line in the order in
which they came. A lease at its head waits until no row runs, then holds the engine until it is released;
whatever came after it waits.

A request whose row has no room in memory beside those that run, or wants another adapter than they have, lets
later ones pass, but only so many: then all wait until it can run.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from shared.errors import PublicError
from shared.sizes import format_size
from worker.engine.needs import Needs

_PASSES: Final = 16
"""How many requests may be taken before one that came earlier and does not fit yet."""


class Turn:
    """One request's place. `start` is called when a row is free for it; `length` is what it will have, in
    tokens, as far as can be told now. `adapter` is the identity of the one it runs with, "" for none."""

    __slots__ = ("adapter", "length", "passed", "start")

    def __init__(
        self, start: Callable[[], None], length: Callable[[], int] = lambda: 0, *, adapter: str = ""
    ) -> None:
        self.start = start
        self.length = length
        self.adapter = adapter
        self.passed = 0


class Lease:
    """Exclusive use of the engine. `granted` is called when nothing runs any more."""

    __slots__ = ("granted",)

    def __init__(self, granted: Callable[[], None]) -> None:
        self.granted = granted


class Admission:
    """`rows` may run at once, `queue` more may wait."""

    def __init__(self, *, rows: int, queue: int) -> None:
        self._rows = rows
        self._queue = queue
        self._preparing: set[Turn] = set()
        self._line: deque[Turn | Lease] = deque()
        self._running: set[Turn] = set()
        self._holder: Lease | None = None
        self._on_idle: list[Callable[[], None]] = []
        self._needs = Needs()
        self._room_bytes = self._most_bytes = 0
        self.draining = False

    def limit(self, needs: Needs, room_bytes: int, *, most_bytes: int | None = None) -> None:
        """From now on let rows, with what they hold, run beside each other only as `room_bytes` allow.

        `most_bytes` is what there may be of it at other times: a row that needs more is refused.
        """
        self._needs = needs
        self._room_bytes = room_bytes
        self._most_bytes = room_bytes if most_bytes is None else most_bytes
        self._advance()

    def check(self, tokens: int) -> None:
        """Raises PublicError 507 when a row of so many tokens could not even run alone."""
        needed = self._needs.batch_bytes([tokens])
        if needed > self._most_bytes > 0:
            raise PublicError(
                507,
                "does_not_fit",
                f"{tokens} tokens of prompt and answer take {format_size(needed)} of memory, and there are "
                f"{format_size(self._most_bytes)} for it. Shorten the prompt or lower max_tokens.",
            )

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
        return len(self._preparing) + sum(isinstance(place, Turn) for place in self._line)

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
        waiting = [place for place in self._line if isinstance(place, Turn)]
        return sum(turn.adapter == adapter for turn in (*self._preparing, *self._running, *waiting))

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
        self._running.add(turn)
        turn.start()

    def leave(self, turn: Turn) -> None:
        """The request is over: its row is out of the batch, or it never had one."""
        self._preparing.discard(turn)
        self._running.discard(turn)
        if turn in self._line:
            self._line.remove(turn)
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
        while self._line and self._holder is None:
            head = self._line[0]
            if isinstance(head, Lease):
                if self._running:
                    break
                self._line.popleft()
                self._holder = head
                head.granted()
            elif len(self._running) < self._rows and (turn := self._next()) is not None:
                self._line.remove(turn)
                self._running.add(turn)
                turn.start()
            else:
                break
        if not self.in_flight:
            waiting, self._on_idle = self._on_idle, []
            for call in waiting:
                call()

    def _next(self) -> Turn | None:
        """The first in the line that can run beside the running rows."""
        passed: list[Turn] = []
        lengths = [turn.length() for turn in self._running]
        adapter = next((turn.adapter for turn in self._running), None)
        for place in self._line:
            if isinstance(place, Lease):
                return None
            alike = adapter is None or place.adapter == adapter
            if not lengths or (
                alike and self._needs.batch_bytes([*lengths, place.length()]) <= self._room_bytes
            ):
                for earlier in passed:
                    earlier.passed += 1
                return place
            if place.passed >= _PASSES:
                return None
            passed.append(place)
        return None


def _draining() -> PublicError:
    return PublicError(
        503, "draining", "This model is being unloaded; the next request loads it again.", retry_after_s=1
    )

"""Who may run: a bounded line of requests and leases in front of the rows of the batch.

Pure bookkeeping on the event loop: no tasks, no clocks. Requests and leases stand in one line in the order in
which they came. A lease at its head waits until no row runs, then holds the engine until it is released;
whatever came after it waits.
"""

from collections import deque
from collections.abc import Callable

from shared.errors import PublicError


class Turn:
    """One request's place. `start` is called when a row is free for it."""

    __slots__ = ("start",)

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start


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
        self.draining = False

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
            elif len(self._running) < self._rows:
                self._line.popleft()
                self._running.add(head)
                head.start()
            else:
                break
        if not self.in_flight:
            waiting, self._on_idle = self._on_idle, []
            for call in waiting:
                call()


def _draining() -> PublicError:
    return PublicError(
        503, "draining", "This model is being unloaded; the next request loads it again.", retry_after_s=1
    )

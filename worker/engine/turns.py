"""What stands in the line in front of the engine, and what memory there is for it."""

from collections.abc import Callable

import msgspec

from shared.errors import PublicError


def _nothing() -> None:
    pass


class Turn:
    """One request's place. `start` is called when a row is free for it, or `refuse` when none ever will be;
    `length` is what it will have, in tokens, as far as can be told now. `adapter` is the identity of the one
    it runs with, "" for none.

    One that may become longer than that is told with `grown` when it has been promised more. `set_aside` asks
    for its room while it runs, and it stands in the line again when it has left the batch; None if it can't.
    `begun` tells whether its request has had a row: it is only given back when there is no other way.
    """

    __slots__ = (
        "adapter",
        "aside",
        "begun",
        "grown",
        "length",
        "own",
        "passed",
        "place",
        "promised",
        "reached",
        "refuse",
        "set_aside",
        "start",
        "wants",
    )

    def __init__(
        self,
        start: Callable[[], None],
        length: Callable[[], int] = lambda: 0,
        *,
        adapter: str = "",
        refuse: Callable[[PublicError], None] = lambda error: None,
        grown: Callable[[], None] = _nothing,
        set_aside: Callable[[], None] | None = None,
        begun: Callable[[], bool] = lambda: False,
    ) -> None:
        self.start = start
        self.length = length
        self.refuse = refuse
        self.adapter = adapter
        self.grown = grown
        self.set_aside = set_aside
        self.begun = begun
        self.passed = 0
        self.place = 0
        """Rises from each that gets ready to the next: who came first."""
        self.promised = 0
        """Tokens that there is memory for, while it runs."""
        self.wants = 0
        """So many it should be promised, while it runs; 0 if it needs no more."""
        self.reached = 0
        """Tokens it had when it ran last; 0 if it never did."""
        self.own = False
        """It is of a lease's holder."""
        self.aside = False
        """Its room was asked for, and it has not left the batch yet."""


class Lease:
    """Exclusive use of the engine. `granted` is called when nothing runs any more."""

    __slots__ = ("granted", "place")

    def __init__(self, granted: Callable[[], None]) -> None:
        self.granted = granted
        self.place = 0


class Terms(msgspec.Struct, frozen=True):
    """What memory there is for rows, in bytes. 0 is no bound."""

    room_bytes: int = 0
    """For all that run together."""
    most_bytes: int = 0
    """What there may be at other times: a row that needs more is refused."""
    asks: bool = False
    """Whether a row that needs more than there is waits for it. Else it runs alone."""
    back: bool = False
    """One that waits for it is given back instead, unless its request has begun: nobody could give it more
    before this model has left."""
    cut: bool = False
    """Neither can those be given more whose request has begun."""
    pinned: dict[str, int] = {}
    """Models that always stay beside this one, and what they hold."""

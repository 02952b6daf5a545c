"""The rows that run, and the memory that each of them was promised.

A row is let in with what it will probably need, and does not get beyond that. Before it comes there it wants
to be promised more. What can't be promised at once is asked for. A row that comes to its end all the same
leaves the batch, and goes on from what it has said when there is room: beside those that came before it, and
in the room of those that came later.
"""

from collections.abc import Iterator, Sequence

from worker.engine.needs import Needs
from worker.engine.turns import Terms, Turn


class Running:
    """A part of Admission; iterates in the order in which the rows came. `rows` may run at once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._turns: list[Turn] = []
        self.needs = Needs()
        self.terms = Terms()

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns)

    def __contains__(self, turn: Turn) -> bool:
        return turn in self._turns

    def start(self, turn: Turn) -> None:
        turn.promised = self.length(turn)
        self._turns.append(turn)
        self._turns.sort(key=lambda turn: turn.place)
        turn.start()

    def end(self, turn: Turn) -> None:
        """Its row is out of the batch, if it had one."""
        if turn in self._turns:
            self._turns.remove(turn)
        turn.wants = 0
        turn.aside = False

    @property
    def bytes(self) -> int:
        """What they will hold, as far as they were promised it."""
        return self.needs.batch_bytes([turn.promised for turn in self._turns])

    def length(self, turn: Turn) -> int:
        """Tokens that a row which waits is to be promised. One that goes on is content with less than it may
        come to have, if there never is so much."""
        wanted = turn.length()
        if not (turn.reached and self.terms.asks):
            return wanted
        most_bytes = self.terms.room_bytes if self.terms.cut else self.terms.most_bytes
        return max(turn.reached + 1, self.needs.tokens_in(most_bytes, wanted))

    # Whether there is room.

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths may run together."""
        alone = len(lengths) == 1 and not self.terms.asks
        return alone or self.needs.batch_bytes(lengths) <= self.terms.room_bytes

    def never_fits(self, lengths: Sequence[int]) -> bool:
        """Whether there is no memory for them at any time."""
        needed, terms = self.needs.batch_bytes(lengths), self.terms
        return needed > terms.most_bytes > 0 or (needed > 0 and terms.asks and not terms.most_bytes)

    def has_room_for(self, turn: Turn) -> bool:
        """Whether the row may run beside those that do."""
        return self._fits_beside(turn, self._turns)

    def _fits_beside(self, turn: Turn, others: Sequence[Turn]) -> bool:
        if len(others) >= self._rows or any(other.adapter != turn.adapter for other in others):
            return False
        return self.fits([*(other.promised for other in others), self.length(turn)])

    def make_way(self, turn: Turn) -> bool:
        """Set aside the rows that came later than this one, which goes on, the last first, if that makes room
        for it. Whether it does, as soon as they have left."""
        staying = list(self._turns)
        leaving = []
        while not self._fits_beside(turn, staying):
            if not staying or staying[-1].place < turn.place or staying[-1].set_aside is None:
                return False
            leaving.append(staying.pop())
        for other in leaving:
            if not other.aside and other.set_aside is not None:
                other.aside, other.wants = True, 0
                other.set_aside()
        return True

    # Whoever wants more.

    def can_go_on(self, tokens: int) -> bool:
        """Whether there may be memory, at some time, for more than so many tokens of one row."""
        return not self.terms.asks or not self.never_fits([tokens + 1])

    def want(self, turn: Turn, tokens: int) -> None:
        """The row should be promised so many tokens, or as many as it can be."""
        if self.terms.asks:
            tokens = self.needs.tokens_in(self.terms.most_bytes, tokens)
        if tokens > turn.promised and not turn.aside:
            turn.wants = tokens

    def grow(self) -> None:
        """Promise more to those that want it, as far as there is room."""
        for turn in self._turns:
            if not turn.wants:
                continue
            others = (other.promised for other in self._turns if other is not turn)
            if self.fits([*others, turn.wants]):
                turn.promised, turn.wants = turn.wants, 0
                turn.grown()

    @property
    def growing(self) -> Turn | None:
        """The first that wants more than there is."""
        return next((turn for turn in self._turns if turn.wants), None)

    def wanted(self) -> list[int]:
        """Lengths of the rows that memory is to be asked for, together; none if there is enough. The last
        ones are left out where there never is enough for all."""
        if self.growing is None or not self.terms.asks:
            return []
        lengths = [max(turn.promised, turn.wants) for turn in self._turns]
        while len(lengths) > 1 and self.never_fits(lengths):
            lengths.pop()
        return [] if self.fits(lengths) else lengths

"""Rows that become longer than was foreseen: what they are promised, ask for, and give up for each other."""

import pytest

from shared.errors import PublicError
from shared.headers import HANDED_BACK
from worker.engine.admission import Admission
from worker.engine.needs import Needs
from worker.engine.turns import Lease, Terms, Turn

STEP = 256
"""Tokens by which rows take memory; each holds a byte here."""


class Row:
    """One in the line, and what happened to it."""

    def __init__(self, line: "Line", name: str, length: int, *, family: str = "") -> None:
        self.name = name
        self.length = length
        self.family = family
        self.errors: list[PublicError] = []
        self._line = line
        self.turn = Turn(
            lambda: line.note(f"+{name}"),
            lambda: self.length,
            refuse=self._refuse,
            grown=lambda: line.note(f"{name}={self.turn.promised}"),
            set_aside=lambda: line.note(f"-{name}"),
            begun=lambda: (family or name) in line.begun,
        )

    def _refuse(self, error: PublicError) -> None:
        self.errors.append(error)
        self._line.admission.leave(self.turn)


class Line:
    """An admission with so much room, for whom there may be more if it asks."""

    def __init__(self, room: int, most: int = 2**30, *, asks: bool = True, rows: int = 4) -> None:
        self.admission = Admission(rows=rows, queue=100)
        self.begun: set[str] = set()
        self.happened: list[str] = []
        self.rows: dict[str, Row] = {}
        self._asks = asks
        self.limit(room, most)

    def limit(self, room: int, most: int = 2**30, *, back: bool = False, cut: bool = False) -> None:
        terms = Terms(room, most, asks=self._asks, back=back, cut=cut)
        self.admission.limit(Needs(token_bytes=1), terms)

    def note(self, what: str) -> None:
        self.happened.append(what)
        if what[0] == "+":
            row = self.rows[what[1:]]
            self.begun.add(row.family or row.name)

    def news(self) -> list[str]:
        news, self.happened = self.happened, []
        return news

    def row(self, name: str, length: int, *, family: str = "") -> Turn:
        row = self.rows[name] = Row(self, name, length, family=family)
        self.admission.admit(row.turn)
        self.admission.ready(row.turn)
        return row.turn

    def stall(self, name: str, tokens: int, *, then: int | None = None) -> None:
        """It is out of the batch with so many tokens, and wants so many for what is to come."""
        self.rows[name].length = tokens + STEP if then is None else then
        self.admission.stall(self.rows[name].turn, tokens)


def test_a_row_is_promised_more_at_once_where_there_is_room() -> None:
    line = Line(4 * STEP)
    row = line.row("a", STEP)
    line.admission.want(row, 3 * STEP)
    assert line.news() == ["+a", f"a={3 * STEP}"]
    assert line.admission.rows_bytes == 3 * STEP and line.admission.wanted_bytes == 0


def test_what_is_not_there_is_asked_for_while_the_row_runs_on() -> None:
    line = Line(2 * STEP)
    told: list[int] = []
    line.admission.on_want = lambda: told.append(line.admission.wanted_bytes)
    row = line.row("a", 2 * STEP)
    line.admission.want(row, 4 * STEP)
    assert line.admission.is_running(row) and line.admission.rows_bytes == 2 * STEP
    assert line.admission.wants_to_go_on and not line.admission.stalled
    line.limit(3 * STEP)
    assert line.news() == ["+a"], "half of it is not taken"
    line.limit(4 * STEP)
    assert line.news() == [f"a={4 * STEP}"]
    assert line.admission.rows_bytes == 4 * STEP
    assert told == [4 * STEP, 0]


def test_rows_that_run_beside_it_become_as_long_and_are_asked_for_too() -> None:
    line = Line(6 * STEP)
    first, _ = line.row("a", 2 * STEP), line.row("b", STEP)
    assert line.admission.rows_bytes == 4 * STEP, "both as long as the longest"
    line.admission.want(first, 4 * STEP)
    assert line.admission.wanted_bytes == 8 * STEP


def test_the_later_of_two_is_left_out_of_what_is_asked_for_where_there_never_is_enough() -> None:
    line = Line(4 * STEP, most=6 * STEP)
    first, second = line.row("a", 2 * STEP), line.row("b", 2 * STEP)
    line.admission.want(first, 5 * STEP)
    assert line.admission.wanted_bytes == 5 * STEP
    line.admission.leave(first)
    line.admission.want(second, 9 * STEP)
    assert line.admission.wanted_bytes == 6 * STEP, "it is content with what there may be"
    line.limit(6 * STEP, 6 * STEP)
    assert line.news()[-1] == f"b={6 * STEP}"


def test_nobody_who_came_later_begins_in_what_is_about_to_be_needed() -> None:
    line = Line(5 * STEP)
    first = line.row("a", 2 * STEP)
    line.admission.want(first, 6 * STEP)
    later = line.row("b", STEP)
    assert line.news() == ["+a"]
    line.limit(6 * STEP)
    assert line.news() == [f"a={6 * STEP}"]
    line.admission.leave(first)
    assert line.admission.is_running(later)


def test_one_that_was_not_given_more_in_time_waits_where_it_stood_and_goes_on() -> None:
    line = Line(2 * STEP)
    row = line.row("a", 2 * STEP)
    line.row("b", STEP)
    lease = Lease(lambda: line.note("lease"))
    line.admission.lease(lease)
    line.admission.want(row, 4 * STEP)
    line.stall("a", 2 * STEP, then=4 * STEP)
    assert (line.admission.running, line.admission.queued) == (1, 1)
    assert line.news() == ["+a", "+b"], "what is short runs meanwhile"
    assert line.admission.wanted_bytes == 4 * STEP and line.admission.wants_to_go_on
    line.admission.leave(line.rows["b"].turn)
    assert line.admission.stalled and line.news() == [], "a lease waits for what has begun"
    line.limit(4 * STEP)
    assert line.news() == ["+a"] and line.admission.wanted_bytes == 0
    line.admission.leave(row)
    assert line.news() == ["lease"]


def test_it_takes_the_room_of_rows_that_came_later_the_last_first() -> None:
    line = Line(6 * STEP)
    for name in "abc":
        line.row(name, 2 * STEP)
    line.admission.want(line.rows["a"].turn, 3 * STEP)
    line.stall("a", 2 * STEP, then=3 * STEP)
    assert line.news() == ["+a", "+b", "+c", "-c"], "with the last one gone there is room for it"
    line.limit(6 * STEP)
    assert line.news() == [], "it is told once"
    line.stall("c", 400, then=2 * STEP)
    assert line.news() == ["+a"]
    line.admission.leave(line.rows["a"].turn)
    assert line.news() == ["+c"] and line.admission.running == 2


def test_earlier_rows_keep_their_room() -> None:
    line = Line(4 * STEP)
    line.row("a", 2 * STEP)
    line.row("b", 2 * STEP)
    line.stall("b", 2 * STEP, then=3 * STEP)
    assert line.news() == ["+a", "+b"]
    line.admission.leave(line.rows["a"].turn)
    assert line.news() == ["+b"]


def test_work_that_can_not_be_set_aside_is_waited_for() -> None:
    line = Line(4 * STEP)
    line.row("a", 2 * STEP)
    job = Turn(lambda: line.happened.append("job"), lambda: 2 * STEP)
    line.admission.admit(job)
    line.admission.ready(job)
    line.stall("a", 2 * STEP, then=3 * STEP)
    assert line.news() == ["+a", "job"]
    line.admission.leave(job)
    assert line.news() == ["+a"]


def test_it_goes_on_in_place_of_a_later_one_where_all_rows_are_taken() -> None:
    line = Line(3 * STEP, rows=1)
    line.row("a", 3 * STEP)
    line.stall("a", 3 * STEP, then=4 * STEP)
    line.row("b", STEP)
    line.limit(4 * STEP)
    assert line.news() == ["+a", "+b", "-b"]
    line.stall("b", 10, then=STEP)
    assert line.news() == ["+a"]


def test_without_anybody_to_ask_the_first_goes_on_alone_beyond_what_there_is() -> None:
    line = Line(4 * STEP, most=4 * STEP, asks=False)
    first, _ = line.row("a", 2 * STEP), line.row("b", 2 * STEP)
    line.admission.want(first, 9 * STEP)
    line.stall("a", 2 * STEP, then=9 * STEP)
    assert line.news() == ["+a", "+b", "-b"] and line.admission.wanted_bytes == 0
    line.stall("b", 300)
    assert line.news() == ["+a"] and line.admission.rows_bytes == 9 * STEP


def test_whether_it_may_ever_go_on() -> None:
    line = Line(2 * STEP, most=4 * STEP)
    assert line.admission.can_go_on(4 * STEP - 1) and not line.admission.can_go_on(4 * STEP)
    line.row("a", 2 * STEP)
    line.stall("a", 2 * STEP, then=9 * STEP)
    assert line.admission.wanted_bytes == 4 * STEP
    line.limit(STEP, STEP)
    assert [error.status for error in line.rows["a"].errors] == [507]
    assert Line(STEP, STEP, asks=False).admission.can_go_on(4 * STEP)


def test_what_has_begun_is_not_given_back_unless_there_is_no_other_way() -> None:
    """Answers of one request come one after the other; one was given back when another had been told."""
    line = Line(2 * STEP)
    line.row("q1", 2 * STEP, family="q")
    line.row("q2", 2 * STEP, family="q")
    line.row("r", 2 * STEP)
    line.limit(STEP, back=True)
    assert line.rows["r"].errors
    line.admission.leave(line.rows["q1"].turn)
    assert not line.rows["q2"].errors and line.news() == ["+q1"]
    assert (line.admission.wanted_bytes, line.admission.wants_to_go_on) == (2 * STEP, True)
    line.limit(2 * STEP)
    assert line.news() == ["+q2"]
    line.stall("q2", 2 * STEP)
    line.limit(STEP, back=True, cut=True)
    (error,) = line.rows["q2"].errors
    assert (HANDED_BACK, b"1") in error.headers()
    assert line.admission.in_flight == 0


def test_one_that_is_to_end_goes_on_as_far_as_there_is_room() -> None:
    line = Line(3 * STEP)
    line.row("a", 2 * STEP)
    line.stall("a", 2 * STEP, then=9 * STEP)
    line.limit(3 * STEP, back=True, cut=True)
    assert line.news() == ["+a", "+a"] and line.admission.rows_bytes == 3 * STEP
    line.stall("a", 3 * STEP, then=9 * STEP)
    assert line.rows["a"].errors


def test_what_has_begun_asks_before_what_waits() -> None:
    line = Line(2 * STEP)
    line.row("long", 8 * STEP)
    assert (line.admission.wanted_bytes, line.admission.wants_to_go_on) == (8 * STEP, False)
    line.row("a", 2 * STEP)
    line.stall("a", 2 * STEP, then=4 * STEP)
    assert (line.admission.wanted_bytes, line.admission.wants_to_go_on) == (4 * STEP, True)


@pytest.mark.parametrize(
    "needs",
    [
        Needs(token_bytes=3, fixed_bytes=1000),
        Needs(token_bytes=1, windows=((512, 7),), draft=Needs(token_bytes=2)),
        Needs(fixed_bytes=10),
    ],
)
@pytest.mark.parametrize("size", [0, 9, 1000, 5_000, 10**6])
def test_the_longest_row_in_so_many_bytes(needs: Needs, size: int) -> None:
    tokens = needs.tokens_in(size, 20_000)
    assert tokens == 0 or needs.batch_bytes([tokens]) <= size
    assert tokens == 20_000 or needs.batch_bytes([tokens + 1]) > size

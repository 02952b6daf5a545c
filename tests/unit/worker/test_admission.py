"""The line in front of the engine."""

from collections.abc import Callable

import pytest

from shared.errors import PublicError
from worker.engine.admission import Admission
from worker.engine.needs import Needs
from worker.engine.turns import Lease, Terms, Turn


class Line:
    """An admission whose starts and grants are written down."""

    def __init__(self, *, rows: int = 2, queue: int = 2) -> None:
        self.admission = Admission(rows=rows, queue=queue)
        self.happened: list[str] = []

    def note(self, what: str) -> Callable[[], None]:
        return lambda: self.happened.append(what)

    def request(self, name: str) -> Turn:
        turn = Turn(self.note(name))
        self.admission.admit(turn)
        self.admission.ready(turn)
        return turn

    def lease(self, name: str) -> Lease:
        lease = Lease(self.note(name))
        self.admission.lease(lease)
        return lease

    def news(self) -> list[str]:
        news, self.happened = self.happened, []
        return news


def test_requests_run_in_order_as_rows_are_free() -> None:
    line = Line()
    first, second = line.request("a"), line.request("b")
    line.request("c")
    line.request("d")
    assert line.news() == ["a", "b"]
    assert (line.admission.running, line.admission.queued, line.admission.in_flight) == (2, 2, 4)
    line.admission.leave(second)
    assert line.news() == ["c"]
    line.admission.leave(first)
    assert line.news() == ["d"]


def test_a_full_line_is_refused_and_says_when_to_come_back() -> None:
    line = Line(rows=1, queue=1)
    line.request("a")
    waiting = line.request("b")
    with pytest.raises(PublicError) as refusal:
        line.request("c")
    assert (refusal.value.status, refusal.value.code) == (429, "queue_full")
    assert (b"retry-after", b"1") in refusal.value.headers()
    line.admission.leave(waiting)
    line.request("d")


def test_requests_being_prepared_count() -> None:
    line = Line(rows=1, queue=0)
    line.admission.admit(Turn(line.note("a")))
    assert line.admission.queued == 1
    with pytest.raises(PublicError):
        line.request("b")


def test_who_leaves_the_line_is_not_started() -> None:
    line = Line(rows=1)
    first, second = line.request("a"), line.request("b")
    line.request("c")
    line.admission.leave(second)
    line.admission.leave(first)
    assert line.news() == ["a", "c"]


def test_a_lease_waits_for_what_runs_and_holds_up_what_comes_after() -> None:
    line = Line()
    running = line.request("a")
    lease = line.lease("lease")
    line.request("later")
    assert line.news() == ["a"]
    assert (line.admission.leases, line.admission.leased) == (1, False)
    line.admission.leave(running)
    assert line.news() == ["lease"]
    assert (line.admission.leases, line.admission.leased) == (1, True)
    line.admission.release(lease)
    assert line.news() == ["later"]


def test_what_waited_before_a_lease_runs_before_it() -> None:
    line = Line(rows=1)
    first, second = line.request("a"), line.request("b")
    line.lease("lease")
    line.admission.leave(first)
    assert line.news() == ["a", "b"]
    line.admission.leave(second)
    assert line.news() == ["lease"]


def test_leases_are_held_one_after_the_other_in_order() -> None:
    line = Line()
    one = line.lease("one")
    two = line.lease("two")
    three = line.lease("three")
    assert line.news() == ["one"]
    line.admission.release(two)  # gave up waiting
    line.admission.release(one)
    assert line.news() == ["three"]
    line.admission.release(three)
    assert line.admission.leases == 0


def test_the_holder_of_a_lease_runs_rows_past_the_line() -> None:
    line = Line(rows=1)
    lease = line.lease("lease")
    line.request("later")
    own = Turn(line.note("own"))
    line.admission.run_under(lease, own)
    assert line.news() == ["lease", "own"]
    line.admission.release(lease)
    assert line.news() == [], "the holder's row is still in the batch"
    line.admission.leave(own)
    assert line.news() == ["later"]


def test_draining_admits_nothing_and_tells_when_all_is_done() -> None:
    line = Line(rows=1)
    first, second = line.request("a"), line.request("b")
    line.admission.drain(line.note("idle"))
    with pytest.raises(PublicError) as refusal:
        line.request("c")
    assert (refusal.value.status, refusal.value.code) == (503, "draining")
    with pytest.raises(PublicError):
        line.lease("lease")
    line.admission.leave(first)
    assert line.news() == ["a", "b"]
    line.admission.leave(second)
    assert line.news() == ["idle"]
    line.admission.drain(line.note("still idle"))
    assert line.news() == ["still idle"]


def limited(*, room_bytes: int, rows: int = 4) -> Line:
    """Each token of a row holds a byte, in steps of 256."""
    line = Line(rows=rows, queue=100)
    line.admission.limit(Needs(token_bytes=1), Terms(room_bytes, room_bytes))
    return line


def long_request(line: Line, name: str, tokens: int) -> Turn:
    turn = Turn(line.note(name), lambda: tokens)
    line.admission.admit(turn)
    line.admission.ready(turn)
    return turn


def test_a_row_without_room_waits_and_smaller_ones_pass() -> None:
    line = limited(room_bytes=2048)
    first = long_request(line, "a", 1000)
    long_request(line, "long", 2000)
    long_request(line, "b", 500)
    assert line.news() == ["a", "b"]
    assert line.admission.rows_bytes == 2 * 1024, "in a batch all are padded to the longest"
    line.admission.leave(first)
    assert line.news() == [], "b is still there"


def test_a_long_row_is_not_passed_forever() -> None:
    line = limited(room_bytes=4096)
    long_request(line, "a", 1000)
    long_request(line, "long", 3000)
    for _ in range(50):
        short = long_request(line, "short", 100)
        line.admission.leave(short)
    passed = line.news()
    assert 1 < passed.count("short") < 50 and "long" not in passed


def test_a_long_row_that_waited_long_enough_runs_next() -> None:
    line = limited(room_bytes=4096)
    first = long_request(line, "a", 1000)
    long_request(line, "long", 3000)
    for _ in range(50):
        line.admission.leave(long_request(line, "short", 100))
    line.news()
    line.admission.leave(first)
    assert line.news()[0] == "long"


def test_whoever_is_alone_runs() -> None:
    line = limited(room_bytes=100)
    only = long_request(line, "a", 1000)
    long_request(line, "b", 10)
    assert line.news() == ["a"]
    line.admission.leave(only)
    assert line.news() == ["b"]


def test_a_row_that_never_fits_is_refused_with_both_numbers() -> None:
    line = limited(room_bytes=2**20)
    line.admission.check(2**20)
    with pytest.raises(PublicError) as refusal:
        line.admission.check(2**21)
    assert (refusal.value.status, refusal.value.code) == (507, "does_not_fit")
    assert "2.0 MiB" in refusal.value.message and "1.0 MiB" in refusal.value.message

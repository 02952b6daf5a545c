"""The residency policy by example: rows that need more than their worker may take."""

import pytest

from supervisor.workers.actions import Action, Drain, GiveBack, Grant, Lease, Share, Spawn, Stop, Trim
from supervisor.workers.residency import Residency
from tests.unit.workers.residency_examples import serving, traits

A, B = traits("a", cost=3), traits("b", cost=3)


class Policy:
    """A policy whose workers hear at once what they are told."""

    def __init__(self, budget: int) -> None:
        self.residency = Residency(budget)
        self.heard: dict[str, Share] = {}

    def hear(self, now: float) -> list[Action]:
        """What is told is heard, until nothing new is told."""
        actions: list[Action] = []
        while self.residency.unshared:
            for model, share in self.residency.share_out().items():
                self.heard[model] = share
                actions += self.residency.limited(model, share.bytes, now)
        return actions

    def reads(self, model: str, holds: int, now: float, *, wants: int = 0, least: int = 0) -> list[Action]:
        actions = self.residency.measured(model, holds, now, wanted_bytes=wants, least_bytes=least)
        return actions + self.hear(now)

    def grows(self, model: str, holds: int, now: float, *, wants: int, stalled: bool = False) -> list[Action]:
        """As `reads`, of a request that has begun."""
        actions = self.residency.measured(
            model, holds, now, wanted_bytes=wants, goes_on=True, stalled=stalled
        )
        return actions + self.hear(now)


@pytest.fixture
def busy() -> Policy:
    """Two models of 3 with a request each, and 4 that nobody counts for."""
    policy = Policy(10)
    serving(policy.residency, A, B)
    policy.residency.arrived(1, A, 1.0)
    policy.residency.arrived(2, B, 1.0)
    policy.hear(1.0)
    return policy


def test_what_nobody_counts_for_is_dealt_out_in_equal_parts(busy: Policy) -> None:
    assert busy.heard == {"a": Share(5, 10), "b": Share(5, 10)}


def test_a_larger_share_waits_until_the_smaller_ones_are_heard(busy: Policy) -> None:
    residency = busy.residency
    residency.measured("a", 3, 2.0, wanted_bytes=7)
    shares = residency.share_out()
    assert shares["b"].bytes == 3 and shares["a"].bytes == 5
    assert residency.limited("b", 4, 2.0) == [] and not residency.unshared, "it has heard something older"
    residency.limited("b", 3, 2.0)
    assert residency.share_out()["a"].bytes == 7


def test_what_is_given_is_taken_back_when_the_row_has_ended(busy: Policy) -> None:
    busy.reads("a", 3, 2.0, wants=7)
    assert (busy.heard["a"].bytes, busy.heard["b"].bytes) == (7, 3)
    busy.reads("a", 7, 2.0)
    assert (busy.heard["a"].bytes, busy.heard["b"].bytes) == (7, 3)
    busy.reads("a", 3, 3.0)
    assert (busy.heard["a"].bytes, busy.heard["b"].bytes) == (5, 5)


def test_a_row_waits_for_the_rows_of_the_other_and_nothing_new_runs_there(busy: Policy) -> None:
    busy.reads("b", 5, 2.0)
    assert busy.reads("a", 3, 2.0, wants=6) == []
    assert busy.heard["b"].bytes == 3, "what it costs, though it holds more"
    model = busy.residency.model("a")
    assert model is not None and model.behind == ("b",)
    busy.reads("b", 4, 3.0)
    assert busy.heard["a"].bytes == 6
    other = busy.residency.model("b")
    assert other is not None and not other.yielding


def test_who_asked_first_is_given_first(busy: Policy) -> None:
    busy.reads("a", 3, 2.0, wants=7)
    busy.reads("a", 7, 2.0)
    busy.reads("b", 3, 3.0, wants=5)
    assert busy.heard["b"].bytes == 3
    # The row of a has ended, and its next one came after that of b.
    busy.reads("a", 3, 4.0)
    busy.reads("a", 3, 4.0, wants=7)
    assert busy.heard["b"].bytes == 5 and busy.heard["a"].bytes == 3
    busy.reads("b", 3, 5.0)
    assert busy.heard["a"].bytes == 7


def test_an_idle_model_gives_back_what_it_keeps_before_any_leaves(busy: Policy) -> None:
    residency = busy.residency
    busy.reads("b", 5, 2.0)
    residency.left(2, 2.0)
    assert busy.reads("a", 3, 3.0, wants=7) == [Trim("b")]
    busy.reads("b", 3, 3.0)
    assert busy.heard["a"].bytes == 7
    assert residency.trimmed("b", 3.0) == [] and residency.phase("b") == "ready"


def test_an_idle_model_leaves_for_a_row_that_needs_its_room(busy: Policy) -> None:
    busy.residency.left(2, 2.0)
    assert busy.reads("a", 3, 3.0, wants=9) == [Stop("b", "evicted")]
    busy.residency.gone("b", 4.0)
    busy.hear(4.0)
    assert busy.heard["a"].bytes == 9


def test_a_busy_model_leaves_when_it_rests_and_the_row_that_asked_later_is_given_back(busy: Policy) -> None:
    """Each would have waited for the other to leave."""
    residency = busy.residency
    busy.reads("a", 3, 2.0, wants=9)
    busy.reads("b", 3, 3.0, wants=9)
    assert busy.heard["b"].back and not busy.heard["a"].back
    busy.reads("b", 3, 3.0)
    assert residency.left(2, 3.0) == [Stop("b", "evicted")]
    # What was given back comes again, and waits for a turn of its own.
    residency.arrived(3, B, 3.0, again=True)
    residency.gone("b", 4.0)
    busy.hear(4.0)
    assert busy.heard["a"].bytes == 9
    busy.reads("a", 9, 4.0)
    assert busy.reads("a", 3, 5.0) == [Spawn("b")]


def test_what_has_begun_gets_room_before_what_asked_earlier(busy: Policy) -> None:
    busy.reads("b", 5, 2.0)
    busy.reads("a", 3, 2.0, wants=7)
    busy.grows("b", 5, 3.0, wants=7)
    assert (busy.heard["a"].bytes, busy.heard["b"].bytes) == (3, 7)
    model = busy.residency.model("a")
    assert model is not None and model.behind == ("b",) and not model.back


def test_one_that_waits_is_given_back_for_one_that_has_begun(busy: Policy) -> None:
    busy.reads("a", 3, 2.0, wants=9)
    busy.grows("b", 3, 3.0, wants=9)
    assert busy.heard["a"].back and not busy.heard["a"].cut
    busy.reads("a", 3, 3.0)
    assert busy.residency.left(1, 3.0) == [Stop("a", "evicted")]
    busy.residency.gone("a", 4.0)
    busy.hear(4.0)
    assert busy.heard["b"].bytes == 9 and not busy.heard["b"].back


def test_of_two_that_grow_the_later_one_makes_room_and_goes_on_afterwards(busy: Policy) -> None:
    busy.grows("a", 5, 2.0, wants=7)
    busy.grows("b", 5, 3.0, wants=7)
    assert busy.heard["b"].bytes == 3 and not busy.heard["b"].cut
    # It has come to its end, and keeps what it computed until it is asked for that.
    assert busy.grows("b", 5, 4.0, wants=7, stalled=True) == [Trim("b")]
    busy.grows("b", 3, 4.0, wants=7, stalled=True)
    assert busy.residency.trimmed("b", 4.0) == []
    assert busy.heard["a"].bytes == 7 and not busy.heard["b"].back
    busy.reads("a", 7, 5.0)
    assert busy.heard["b"].bytes == 3
    busy.reads("a", 3, 6.0)
    assert busy.heard["b"].bytes == 7 and not busy.heard["b"].cut


def test_of_two_that_need_each_others_room_the_later_one_ends_as_it_is(busy: Policy) -> None:
    busy.grows("a", 5, 2.0, wants=9)
    busy.grows("b", 5, 3.0, wants=9)
    for model in ("a", "b"):
        # Both have nothing more to give back.
        busy.residency.trimmed(model, 3.0)
    busy.hear(3.0)
    assert busy.heard["b"] == Share(3, 10, back=True), "it runs, and may end by itself"
    busy.grows("b", 3, 4.0, wants=9, stalled=True)
    assert busy.heard["b"] == Share(3, 10, back=True, cut=True)
    assert not busy.heard["a"].back
    busy.reads("b", 3, 4.0)
    assert busy.residency.left(2, 4.0) == [Stop("b", "evicted")]


def test_what_has_begun_goes_on_in_the_room_of_workers_that_were_leased_for_the_machine(
    busy: Policy,
) -> None:
    residency = busy.residency
    residency.left(2, 2.0)
    busy.reads("b", 5, 2.0)
    assert residency.lease_asked(7, 2.0, unload=False) == [Lease("b")]
    residency.taken("b", 2.0)
    assert busy.grows("a", 5, 3.0, wants=9) == [GiveBack("b"), Trim("b")], "and is not leased again before"
    assert busy.reads("b", 3, 3.0) == [Stop("b", "evicted")]
    residency.gone("b", 4.0)
    busy.hear(4.0)
    assert busy.heard["a"].bytes == 9 and not busy.heard["a"].back
    busy.reads("a", 9, 4.0)
    assert residency.left(1, 5.0) == [Lease("a")]
    assert residency.taken("a", 5.0) == [Grant(7)]


def test_a_worker_that_is_to_end_does_so_for_a_lease_though_requests_wait_for_it() -> None:
    """They were promised a turn at it, and nobody is let in while the machine is wanted."""
    residency = Residency(10)
    assert residency.arrived(1, A, 0.0) == [Spawn("a")]
    residency.unload("a", 0.0)
    assert residency.lease_asked(7, 1.0, unload=False) == []
    assert residency.ready("a", 2.0) == [Drain("a"), Stop("a", "unloaded")]
    assert residency.gone("a", 3.0) == [Grant(7)]
    assert residency.lease_ended(7, 4.0) == [Spawn("a")]


def test_rows_are_given_back_when_the_machine_is_wanted(busy: Policy) -> None:
    busy.reads("b", 6, 2.0)
    busy.reads("a", 3, 2.0, wants=6)
    assert not busy.heard["a"].back
    busy.residency.lease_asked(7, 3.0, unload=False)
    busy.hear(3.0)
    assert busy.heard["a"].back


def test_what_pinned_models_leave_is_the_most_that_can_be_given() -> None:
    policy = Policy(10)
    serving(policy.residency, A, traits("p", cost=4, pinned=True))
    policy.residency.arrived(1, A, 1.0)
    policy.hear(1.0)
    assert policy.heard["a"].most_bytes == 6 and policy.heard["p"].most_bytes == 10
    assert policy.residency.pinned() == {"p": 4}
    # What it can't give back counts, and what it holds for its rows does not.
    policy.reads("p", 8, 2.0, least=5)
    assert policy.heard["a"].most_bytes == 5


def test_a_pinned_model_that_is_busy_lets_nothing_new_in_while_a_row_waits_for_its_rows() -> None:
    policy = Policy(10)
    serving(policy.residency, A, traits("p", cost=3, pinned=True))
    policy.residency.arrived(1, A, 1.0)
    policy.residency.arrived(2, traits("p", cost=3, pinned=True), 1.0)
    policy.reads("p", 6, 2.0)
    assert policy.reads("a", 3, 2.0, wants=7) == []
    assert policy.heard["p"].bytes == 3
    policy.reads("p", 3, 3.0)
    assert policy.heard["a"].bytes == 7


def test_a_load_waits_until_the_others_have_heard_that_they_may_take_less(busy: Policy) -> None:
    residency = busy.residency
    assert residency.arrived(3, traits("c", cost=4), 2.0) == []
    assert [share.bytes for share in residency.share_out().values()] == [3, 3]
    assert residency.limited("a", 3, 2.0) == []
    (waiting,) = residency.waiting(2.0)
    assert (waiting.reason, waiting.behind) == ("room", ("b",))
    assert residency.limited("b", 3, 2.0) == [Spawn("c")]


def test_a_worker_that_dies_asks_no_more(busy: Policy) -> None:
    busy.reads("b", 7, 2.0)
    busy.reads("a", 3, 2.0, wants=7)
    busy.residency.restarting("a", 3.0)
    model = busy.residency.model("a")
    assert model is not None and not model.wanted_bytes and model.share_bytes == 3
    busy.residency.failed("a", 4.0)
    busy.hear(4.0)
    assert busy.heard["b"].bytes == 10


def test_nothing_is_given_while_the_machine_is_short_of_memory(busy: Policy) -> None:
    busy.reads("b", 6, 2.0)
    busy.residency.press(2.0, trim=False, unload=True)
    busy.reads("a", 3, 2.0, wants=6)
    busy.residency.left(2, 3.0)
    busy.hear(3.0)
    assert busy.heard["a"].bytes < 6 and not busy.heard["a"].back

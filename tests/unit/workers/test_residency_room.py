"""The residency policy by example: bytes, hold and turns."""

from supervisor.workers.actions import (
    Admit,
    Spawn,
    Stop,
    Why,
)
from supervisor.workers.residency import Residency
from tests.unit.workers.residency_examples import A, B, C, refused, serving, traits

# What comes next.


def test_the_next_load_is_expected_of_whoever_is_first_to_get_room() -> None:
    residency = Residency(10)
    assert residency.expected() is None
    serving(residency, traits("a", cost=10))
    residency.arrived(1, traits("a", cost=10), 1.0)
    residency.arrived(2, traits("b", cost=10), 2.0)
    residency.arrived(3, traits("c", cost=10, priority=1), 3.0)
    assert residency.expected() == "c"
    residency.left(3, 4.0)
    assert residency.expected() == "b"


def test_of_whoever_had_to_make_room_when_nobody_waits() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=10))
    assert residency.arrived(1, traits("b", cost=10), 1.0) == [Stop("a", "evicted")]
    assert residency.expected() == "b"
    assert residency.gone("a", 2.0) == [Spawn("b")]
    assert residency.expected() == "b", "the spare lets go of what it is about to be told to load"
    residency.ready("b", 3.0)
    assert residency.expected() == "a"
    residency.arrived(2, traits("a", cost=10), 4.0)
    residency.left(1, 5.0)
    assert residency.gone("b", 6.0) == [Spawn("a")]
    residency.ready("a", 7.0)
    assert residency.expected() == "b"


def test_of_nobody_when_the_last_to_leave_was_not_in_the_way() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=10))
    assert residency.tick(1000.0) == [Stop("a", "idle")]
    residency.gone("a", 1001.0)
    assert residency.expected() is None


# Bytes.


def test_models_load_beside_each_other_as_long_as_their_bytes_fit() -> None:
    residency = Residency(10)
    assert residency.arrived(1, traits("a", cost=6), 0.0) == [Spawn("a")]
    assert residency.arrived(2, traits("b", cost=4), 0.0) == [Spawn("b")]
    assert residency.arrived(3, traits("c", cost=1), 0.0) == []
    assert residency.booked_bytes == 10


def test_no_more_idle_models_leave_than_it_takes() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=2), traits("b", cost=2), traits("c", cost=6))
    # a and b were used before c, but without c they are not enough, and with it they are needless.
    assert residency.arrived(1, traits("d", cost=6), 1.0) == [Stop("c", "evicted")]


def test_several_leave_for_a_large_one_and_it_loads_when_the_last_is_reaped() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=3), traits("b", cost=3), traits("c", cost=4))
    assert residency.arrived(1, traits("d", cost=6), 1.0) == [Stop("a", "evicted"), Stop("b", "evicted")]
    assert residency.gone("a", 2.0) == []
    assert residency.gone("b", 2.0) == [Spawn("d")]


def test_nobody_leaves_before_the_room_is_whole() -> None:
    """b alone would not be enough, and a is busy: b can go on serving until a has finished."""
    residency = Residency(10)
    serving(residency, traits("a", cost=6), traits("b", cost=4))
    residency.arrived(1, traits("a", cost=6), 1.0)
    assert residency.arrived(2, traits("c", cost=9), 1.0) == []
    assert residency.arrived(3, traits("b", cost=4), 2.0) == [Admit(3, "b")]
    assert residency.left(3, 3.0) == []
    assert residency.left(1, 4.0) == [Stop("b", "evicted"), Stop("a", "evicted")]


def test_room_that_a_large_one_waits_for_is_not_given_to_a_small_one() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=6))
    residency.arrived(1, traits("a", cost=6), 1.0)
    assert residency.arrived(2, traits("big", cost=10), 1.0) == []
    assert residency.arrived(3, traits("small", cost=4), 2.0) == []
    assert residency.left(1, 3.0) == [Stop("a", "evicted")]
    assert residency.gone("a", 4.0) == [Spawn("big")]


def test_what_is_left_over_is_given_to_a_small_one() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=8))
    residency.arrived(1, traits("a", cost=8), 1.0)
    assert residency.arrived(2, traits("b", cost=7), 1.0) == []
    assert residency.arrived(3, traits("small", cost=2), 2.0) == [Spawn("small")]


def test_one_that_never_fits_is_refused() -> None:
    residency = Residency(10)
    assert refused(residency.arrived(1, traits("a", cost=11), 0.0)) == {1: Why.TOO_LARGE}
    assert residency.phase("a") == "absent"


def test_a_leased_model_holds_up_whom_it_is_in_the_way_of_and_nobody_else() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=6), traits("b", cost=4))
    residency.lease("a", 1.0, held=True)
    assert residency.arrived(1, traits("big", cost=9), 1.0) == []
    assert residency.waiting(1.0)[0].behind == ("a",)
    assert residency.arrived(2, traits("c", cost=4), 1.0) == [Stop("b", "evicted")]
    assert residency.gone("b", 2.0) == [Spawn("c")]
    residency.ready("c", 3.0)
    residency.left(2, 3.0)
    assert set(residency.lease("a", 4.0, held=False)) == {Stop("a", "evicted"), Stop("c", "evicted")}


def test_growth_is_booked_and_idle_models_leave_for_it() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=4), traits("b", cost=4, hold=60))
    residency.arrived(1, traits("a", cost=4), 1.0)
    assert residency.measured("a", 6, 1.0) == []
    assert residency.booked_bytes == 10
    # What it gives back is free, but not below what it was expected to hold.
    assert residency.measured("a", 3, 1.0) == []
    assert residency.booked_bytes == 8
    assert residency.measured("a", 7, 1.0) == [Stop("b", "evicted")]
    assert residency.arrived(2, traits("c", cost=3), 2.0) == []
    assert residency.gone("b", 3.0) == [Spawn("c")]


def test_one_that_has_grown_over_the_budget_alone_stays() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=4))
    assert residency.measured("a", 12, 1.0) == []
    assert residency.arrived(1, traits("a", cost=4), 2.0) == [Admit(1, "a")]
    assert residency.left(1, 3.0) == []
    assert residency.arrived(2, B, 4.0) == [Stop("a", "evicted")]


def test_a_smaller_budget_makes_idle_models_leave_and_no_busy_one() -> None:
    residency = Residency(10)
    serving(residency, traits("a", cost=4), traits("b", cost=4))
    residency.arrived(1, traits("a", cost=4), 1.0)
    assert residency.allow(4, 100, 1.0) == [Stop("b", "evicted")]
    assert residency.left(1, 2.0) == []
    assert residency.gone("b", 3.0) == []
    # Of a budget in which it could not load it leaves as well; it stayed, over the budget for good.
    residency.arrived(2, traits("a", cost=4), 4.0)
    assert residency.allow(3, 100, 4.0) == []
    assert residency.left(2, 5.0) == [Stop("a", "evicted")]


def test_an_exclusive_model_loads_alone_and_stays_alone() -> None:
    residency = Residency(10)
    big = traits("big", cost=2, exclusive=True)
    serving(residency, traits("a", cost=2), traits("b", cost=2))
    residency.arrived(1, traits("a", cost=2), 1.0)
    assert residency.arrived(2, big, 1.0) == []
    assert residency.left(1, 2.0) == [Stop("a", "evicted"), Stop("b", "evicted")]
    assert residency.gone("a", 3.0) == []
    assert residency.gone("b", 3.0) == [Spawn("big")]
    residency.ready("big", 4.0)
    assert residency.arrived(3, traits("a", cost=2), 5.0) == []
    assert residency.left(2, 6.0) == [Stop("big", "evicted")]
    assert residency.gone("big", 7.0) == [Spawn("a")]


def test_an_exclusive_model_beside_a_pinned_one_is_refused() -> None:
    residency = Residency(10)
    serving(residency, traits("a", pinned=True))
    assert refused(residency.arrived(1, traits("b", exclusive=True), 1.0)) == {1: Why.PINNED}


# Hold and turns.


def test_a_model_is_held_for_a_moment_after_its_last_answer() -> None:
    residency = Residency(1)
    held = traits("a", hold=5)
    serving(residency, held)
    residency.arrived(1, held, 10.0)
    residency.arrived(2, B, 10.5)
    assert residency.left(1, 11.0) == []
    assert residency.next_tick(12.0) == 16.0
    assert residency.tick(15.9) == []
    assert residency.tick(16.0) == [Stop("a", "evicted")]


def test_a_held_model_begins_two_further_turns_and_no_third() -> None:
    residency = Residency(1)
    held = traits("a", hold=5)
    serving(residency, held)
    residency.arrived(1, held, 10.0)
    assert residency.arrived(2, B, 10.5) == []
    # Within the hold time of its beginning the turn takes in what comes.
    assert residency.arrived(3, held, 11.0) == [Admit(3, "a")]
    assert residency.arrived(4, held, 15.0) == []
    assert residency.left(1, 16.0) == []
    assert residency.left(3, 16.0) == [Admit(4, "a")]  # the first further turn
    assert residency.left(4, 17.0) == []
    assert residency.arrived(5, held, 18.0) == [Admit(5, "a")]  # the second
    assert residency.arrived(6, held, 24.0) == []
    assert residency.left(5, 25.0) == [Stop("a", "evicted")]
    assert residency.gone("a", 26.0) == [Spawn("b")]


def test_a_turn_that_serves_one_after_the_other_does_not_go_on_for_ever() -> None:
    """What came late in it was taken in as if the turn had begun with the request before."""
    residency = Residency(1)
    single = traits("a", hold=5, concurrency=1, queue=0)
    serving(residency, single)
    residency.arrived(1, single, 10.0)
    residency.arrived(2, B, 10.0)
    assert residency.arrived(3, single, 12.0, by_hand=True) == []
    assert residency.left(1, 14.0) == [Admit(3, "a")]
    assert residency.arrived(4, single, 16.0, by_hand=True) == []
    assert residency.left(3, 18.0) == [Admit(4, "a")]
    assert residency.model("a").further == 1  # type: ignore[union-attr]


def test_the_one_with_the_higher_priority_gets_room_first() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 1.0)
    residency.arrived(3, traits("c", priority=1), 2.0)
    residency.left(1, 3.0)
    assert residency.gone("a", 4.0) == [Spawn("c")]


def test_priority_passes_over_another_model_twice_at_most() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 1.0)
    order = []
    leaving, request = "a", 1
    for number in range(4):
        name = f"high-{number}"
        residency.arrived(10 + number, traits(name, priority=9), 2.0 + number)
        residency.left(request, 2.5 + number)
        (spawn,) = residency.gone(leaving, 2.5 + number)
        assert isinstance(spawn, Spawn)
        order.append(spawn.model)
        (admit,) = residency.ready(spawn.model, 2.6 + number)
        assert isinstance(admit, Admit)
        leaving, request = spawn.model, admit.request
    assert order == ["high-0", "high-1", "b", "high-2"]


def test_only_so_many_requests_wait_over_all_models() -> None:
    residency = Residency(1, max_waiting=2)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 1.0)
    residency.arrived(3, C, 1.0)
    assert refused(residency.arrived(4, C, 1.0)) == {4: Why.CROWDED}
    assert residency.arrived(5, C, 1.0, by_hand=True) == []

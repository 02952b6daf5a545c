"""The residency policy by example; `test_residency_machine.py` looks for what nobody thought of."""

from collections.abc import Sequence

import pytest

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    GiveBack,
    Grant,
    Lease,
    Refuse,
    Spawn,
    Stop,
    Traits,
    Trim,
    Why,
)
from supervisor.workers.residency import Residency


def traits(
    name: str,
    *,
    cost: int = 1,
    concurrency: int = 8,
    queue: int = 64,
    hold: float = 0.0,
    priority: int = 0,
    pinned: bool = False,
    exclusive: bool = False,
) -> Traits:
    return Traits(
        name,
        cost_bytes=cost,
        max_concurrency=concurrency,
        queue=queue,
        idle_unload_s=100.0,
        hold_s=hold,
        priority=priority,
        pinned=pinned,
        exclusive=exclusive,
    )


A, B, C = traits("a"), traits("b"), traits("c")


def admitted(actions: Sequence[Action]) -> list[int]:
    return [action.request for action in actions if isinstance(action, Admit)]


def refused(actions: Sequence[Action]) -> dict[int, Why]:
    return {action.request: action.why for action in actions if isinstance(action, Refuse)}


def serving(residency: Residency, *models: Traits, at: float = 0.0) -> None:
    """Make the models ready and idle, in this order of use."""
    for number, model in enumerate(models):
        request = -1 - number
        residency.arrived(request, model, at + number / 100)
        residency.ready(model.id, at + number / 100)
        residency.left(request, at + number / 100)


def test_first_requests_share_one_spawn() -> None:
    residency = Residency(2)
    assert residency.arrived(0, A, 0.0) == [Spawn("a")]
    for request in range(1, 50):
        assert residency.arrived(request, A, 0.0) == []
    assert admitted(residency.ready("a", 1.0)) == list(range(16))  # the rows, and as many to follow
    assert admitted(residency.left(3, 2.0)) == [16]


def test_a_ready_model_takes_a_request_at_once() -> None:
    residency = Residency(2)
    serving(residency, A)
    assert residency.arrived(1, A, 1.0) == [Admit(1, "a")]
    assert residency.left(1, 2.0) == []


def test_models_load_beside_each_other_while_there_is_room() -> None:
    residency = Residency(2)
    assert residency.arrived(1, A, 0.0) == [Spawn("a")]
    assert residency.arrived(2, B, 0.0) == [Spawn("b")]
    assert residency.arrived(3, C, 0.0) == []


def test_the_least_recently_used_idle_model_leaves() -> None:
    residency = Residency(2)
    serving(residency, A, B)
    residency.arrived(1, A, 1.0)
    residency.left(1, 2.0)
    assert residency.arrived(2, C, 3.0) == [Stop("b", "evicted")]
    # Its place is free only when the process is reaped.
    assert residency.gone("b", 10.0) == [Spawn("c")]


def test_a_leaving_place_is_not_given_twice() -> None:
    residency = Residency(2)
    serving(residency, A, B)
    assert residency.arrived(1, C, 1.0) == [Stop("a", "evicted")]
    assert residency.arrived(2, C, 1.0) == []
    assert residency.arrived(3, traits("d"), 1.0) == [Stop("b", "evicted")]
    assert residency.gone("b", 10.0) == [Spawn("c")]  # first come, first served
    assert residency.gone("a", 10.0) == [Spawn("d")]


def test_a_request_for_a_leaving_model_waits_for_a_fresh_worker() -> None:
    residency = Residency(1)
    serving(residency, A)
    assert residency.tick(1000.0) == [Stop("a", "idle")]
    assert residency.arrived(1, A, 1000.0) == []
    assert residency.gone("a", 10.0) == [Spawn("a")]
    assert residency.ready("a", 1001.0) == [Admit(1, "a")]


def test_a_busy_model_yields_and_nobody_starves() -> None:
    """With room for one, A's traffic never pauses by itself: B still gets its turn, then A again."""
    residency = Residency(1)
    serving(residency, A)
    assert residency.arrived(1, A, 1.0) == [Admit(1, "a")]
    assert residency.arrived(2, B, 2.0) == []
    assert residency.arrived(3, A, 3.0) == []  # waits: it would keep A busy for ever
    assert residency.arrived(4, B, 4.0) == []
    assert residency.left(1, 5.0) == [Stop("a", "evicted")]
    assert residency.gone("a", 10.0) == [Spawn("b")]
    # What waited for B is served together, though A already waits.
    assert admitted(residency.ready("b", 6.0)) == [2, 4]
    assert residency.arrived(5, B, 7.0) == []
    assert residency.left(2, 8.0) == []
    assert residency.left(4, 8.0) == [Stop("b", "evicted")]
    assert residency.gone("b", 10.0) == [Spawn("a")]
    assert admitted(residency.ready("a", 9.0)) == [3]


def test_a_turn_serves_all_that_waited_even_beyond_the_window() -> None:
    residency = Residency(1)
    small = traits("a", concurrency=1, queue=10)
    residency.arrived(0, small, 0.0)
    for request in range(1, 6):
        residency.arrived(request, small, 0.0)
    residency.arrived(10, B, 0.5)
    actions: list[Action] = residency.ready("a", 1.0)
    served = admitted(actions)
    assert residency.arrived(6, small, 1.5) == []
    for request in range(6):
        actions = residency.left(request, 2.0)
        served += admitted(actions)
    assert served == [0, 1, 2, 3, 4, 5]
    assert actions == [Stop("a", "evicted")]


def test_the_one_whose_turn_is_oldest_yields() -> None:
    residency = Residency(2)
    serving(residency, A, B)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 1.0)
    assert residency.arrived(3, C, 2.0) == []
    assert residency.arrived(4, B, 2.0) == [Admit(4, "b")]  # B goes on
    assert residency.arrived(5, A, 2.0) == []
    assert {waiting.id: waiting.reason for waiting in residency.waiting(3.0)} == {"c": "room", "a": "turn"}


def test_who_yields_goes_on_when_another_place_comes_free() -> None:
    residency = Residency(2)
    serving(residency, A, B)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 1.0)
    residency.arrived(3, C, 2.0)
    residency.arrived(4, A, 2.0)
    assert residency.left(2, 3.0) == [Stop("b", "evicted"), Admit(4, "a")]


def test_who_yields_goes_on_when_nobody_wants_its_place_any_more() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, B, 2.0)
    residency.arrived(3, A, 3.0)
    assert residency.left(2, 4.0) == [Admit(3, "a")]


def test_loading_leased_pinned_and_busy_models_are_no_victims() -> None:
    loading, leased, pinned, busy = (
        traits(name, pinned=name == "pinned") for name in ("l", "x", "pinned", "z")
    )
    residency = Residency(4)
    serving(residency, leased, pinned, busy)
    residency.lease("x", 1.0, held=True)
    residency.arrived(1, busy, 1.0)
    residency.arrived(2, loading, 1.0)
    assert residency.arrived(3, C, 2.0) == []
    assert residency.phase("l") == "starting"
    assert residency.ready("l", 3.0) == [Admit(2, "l")]
    assert residency.left(2, 4.0) == [Stop("l", "evicted")]


def test_pinned_models_that_take_all_room_refuse_instead_of_hanging() -> None:
    residency = Residency(1)
    serving(residency, traits("a", pinned=True))
    assert refused(residency.arrived(1, B, 1.0)) == {1: Why.PINNED}


def test_a_leased_worker_gets_no_request_and_is_not_idle() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.lease("a", 10.0, held=True)
    assert residency.arrived(1, A, 1.0) == []
    assert residency.tick(1000.0) == []
    assert residency.waiting(1000.0)[0].reason == "leased"
    assert residency.lease("a", 10.0, held=False) == [Admit(1, "a")]


def test_a_lease_taken_just_before_the_eviction_keeps_the_worker() -> None:
    residency = Residency(2)
    serving(residency, A, B)
    assert residency.arrived(1, C, 1.0) == [Stop("a", "evicted")]
    assert residency.kept("a", 10.0) == [Stop("b", "evicted")]
    assert residency.gone("b", 10.0) == [Spawn("c")]


def test_the_queue_is_bounded() -> None:
    residency = Residency(1)
    small = traits("a", concurrency=1, queue=2)
    for request in range(3):
        residency.arrived(request, small, 0.0)
    assert refused(residency.arrived(3, small, 0.0)) == {3: Why.QUEUE_FULL}
    assert residency.arrived(4, small, 0.0, again=True) == []  # accepted before its worker died
    residency.left(1, 0.0)
    residency.left(2, 0.0)
    assert residency.arrived(5, small, 0.0) == []


def test_a_model_without_a_queue_can_still_be_loaded() -> None:
    residency = Residency(1)
    small = traits("a", concurrency=1, queue=0)
    assert residency.arrived(1, small, 0.0) == [Spawn("a")]
    assert residency.ready("a", 1.0) == [Admit(1, "a")]
    assert refused(residency.arrived(2, small, 1.0)) == {2: Why.QUEUE_FULL}


def test_a_worker_that_died_keeps_its_place_and_its_queue() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.restarting("a", 10.0)
    assert residency.arrived(2, A, 1.0) == []
    assert residency.arrived(3, B, 1.0) == []
    residency.left(1, 1.0)
    assert admitted(residency.ready("a", 2.0)) == [2]


def test_a_failed_model_refuses_at_once_until_it_is_asked_for_by_hand() -> None:
    residency = Residency(1)
    residency.arrived(1, A, 0.0)
    residency.arrived(2, B, 0.0)
    actions = residency.failed("a", 10.0)
    assert refused(actions) == {1: Why.FAILED}
    assert Spawn("b") in actions
    assert refused(residency.arrived(3, A, 1.0)) == {3: Why.FAILED}
    residency.ready("b", 1.0)
    residency.left(2, 1.0)
    assert residency.arrived(4, A, 2.0, by_hand=True) == [Stop("b", "evicted")]
    assert residency.gone("b", 10.0) == [Spawn("a")]


def test_a_failed_model_that_has_changed_is_tried_again() -> None:
    residency = Residency(1)
    residency.arrived(1, A, 0.0)
    residency.failed("a", 10.0)
    residency.forget_failure("a", 10.0)
    assert residency.arrived(2, A, 1.0) == [Spawn("a")]


def test_idle_time_counts_from_the_last_finished_answer() -> None:
    residency = Residency(2)
    serving(residency, A)
    residency.arrived(1, A, 10.0)
    assert residency.next_tick(0.0) is None
    assert residency.tick(500.0) == []
    residency.left(1, 500.0)
    assert residency.next_tick(0.0) == pytest.approx(600.0)
    assert residency.tick(599.9) == []
    assert residency.tick(600.0) == [Stop("a", "idle")]


def test_a_pinned_model_stays_when_idle() -> None:
    residency = Residency(2)
    serving(residency, traits("a", pinned=True))
    assert residency.next_tick(0.0) is None
    assert residency.tick(1e9) == []


def test_unload_lets_what_was_admitted_finish() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    assert residency.unload("a", 10.0) == [Drain("a")]
    assert residency.arrived(2, A, 2.0) == []
    assert residency.unload("a", 10.0) == []
    assert residency.left(1, 3.0) == [Stop("a", "unloaded")]
    assert residency.gone("a", 10.0) == [Spawn("a")]


def test_unload_of_a_loading_model_serves_who_waits_for_it() -> None:
    residency = Residency(1)
    residency.arrived(1, A, 0.0)
    assert residency.unload("a", 10.0) == []
    assert residency.ready("a", 1.0) == [Drain("a"), Admit(1, "a")]
    assert residency.arrived(2, A, 1.5) == []
    assert residency.left(1, 2.0) == [Stop("a", "unloaded")]


def test_unload_of_a_load_that_nobody_waits_for_ends_it() -> None:
    residency = Residency(1)
    residency.arrived(1, traits("a", hold=5), 0.0)
    residency.left(1, 0.5)
    assert residency.unload("a", 1.0) == [Stop("a", "unloaded")]


def test_unload_of_what_is_not_there_does_nothing() -> None:
    assert Residency(1).unload("a", 10.0) == []


def test_shutdown_refuses_who_waits_and_ends_each_worker_when_it_has_finished() -> None:
    residency = Residency(4)
    serving(residency, A, B)
    residency.lease("b", 10.0, held=True)
    residency.arrived(1, A, 1.0)
    residency.arrived(2, C, 1.0)
    actions = residency.shutdown(2.0)
    assert refused(actions) == {2: Why.STOPPING}
    assert Drain("a") in actions
    assert Stop("c", "stopping") in actions
    assert Stop("b", "stopping") in actions  # a lease does not hold up the end
    assert refused(residency.arrived(3, A, 2.0)) == {3: Why.STOPPING}
    assert residency.left(1, 3.0) == [Stop("a", "stopping")]


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
    assert residency.allow(3, 100, 1.0) == [Stop("b", "evicted")]
    assert residency.left(1, 2.0) == []
    assert residency.gone("b", 3.0) == []


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


# Loads that are given up, or fail.


def test_a_load_that_nobody_waits_for_ends_after_the_hold_time() -> None:
    residency = Residency(1)
    held = traits("a", hold=5)
    residency.arrived(1, held, 0.0)
    assert residency.left(1, 1.0) == []
    assert residency.next_tick(1.0) == 6.0
    # A client that tries again finds its load going on.
    assert residency.arrived(2, held, 4.0) == []
    assert residency.tick(7.0) == []
    assert residency.left(2, 8.0) == []
    assert residency.tick(13.0) == [Stop("a", "abandoned")]
    assert residency.arrived(3, held, 13.0) == []
    assert residency.gone("a", 14.0) == [Spawn("a")]


def test_a_load_that_nobody_waits_for_makes_room_for_one_that_somebody_does() -> None:
    residency = Residency(1)
    held = traits("a", hold=5)
    residency.arrived(1, held, 0.0)
    assert residency.arrived(2, B, 0.5) == []
    assert residency.left(1, 1.0) == [Stop("a", "abandoned")]
    assert residency.gone("a", 1.5) == [Spawn("b")]
    residency = Residency(1)
    residency.arrived(1, held, 0.0)
    residency.left(1, 1.0)
    assert residency.arrived(2, B, 2.0) == [Stop("a", "abandoned")]


def test_a_worker_that_served_and_is_replaced_is_no_abandoned_load() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    residency.restarting("a", 2.0)
    residency.left(1, 2.0)
    assert residency.tick(50.0) == []
    assert residency.phase("a") == "starting"


def test_a_load_that_ran_out_of_memory_waits_and_needs_more_room() -> None:
    residency = Residency(10)
    serving(residency, traits("b", cost=5))
    residency.arrived(1, traits("a", cost=5), 1.0)
    residency.change(traits("a", cost=6), 2.0)
    assert residency.gone("a", 2.0, retry_s=4.0) == []
    assert residency.waiting(2.0)[0].reason == "retry"
    assert residency.next_tick(2.0) == 4.0
    assert residency.tick(4.0) == [Stop("b", "evicted")]
    assert residency.gone("b", 5.0) == [Spawn("a")]


# Leases of the machine.


def test_a_lease_waits_for_what_runs_and_takes_every_worker() -> None:
    residency = Residency(3)
    serving(residency, A, B)
    residency.arrived(1, A, 1.0)
    assert residency.lease_asked(7, 1.0, unload=False) == [Lease("b")]
    assert residency.taken("b", 2.0) == []
    assert residency.arrived(2, B, 2.0) == [] and residency.arrived(3, C, 2.0) == []
    assert {waiting.reason for waiting in residency.waiting(2.0)} == {"lease"}
    assert residency.left(1, 3.0) == [Lease("a")]
    assert residency.taken("a", 4.0) == [Grant(7)]
    assert residency.lease_granted == 7
    assert residency.lease_ended(7, 9.0) == [
        GiveBack("a"),
        GiveBack("b"),
        Spawn("c"),
        Admit(2, "b"),
    ]


def test_a_worker_that_becomes_ready_during_a_lease_is_leased_before_it_serves() -> None:
    residency = Residency(2)
    residency.arrived(1, A, 1.0)
    assert residency.lease_asked(7, 1.0, unload=False) == []
    assert residency.ready("a", 2.0) == [Lease("a")]
    assert residency.taken("a", 3.0) == [Grant(7)]
    # One that dies while it is leased is replaced, and that one too serves nobody.
    assert residency.restarting("a", 4.0) == []
    assert residency.ready("a", 5.0) == [Lease("a")]
    assert residency.taken("a", 6.0) == []
    assert residency.lease_ended(7, 7.0) == [GiveBack("a"), Admit(1, "a")]


def test_a_lease_without_models_unloads_them_and_waits_until_they_are_reaped() -> None:
    residency = Residency(3)
    serving(residency, A, traits("b", pinned=True))
    residency.arrived(1, C, 1.0)
    actions = residency.lease_asked(7, 1.0, unload=True)
    assert actions == [Stop("a", "leased"), Stop("b", "leased"), Stop("c", "leased")]
    assert residency.gone("a", 2.0) == residency.gone("b", 2.0) == []
    assert residency.gone("c", 2.0) == [Grant(7)]
    assert residency.lease_ended(7, 3.0) == [Spawn("c")]


def test_an_eviction_under_way_finishes_before_the_lease() -> None:
    residency = Residency(1)
    serving(residency, A)
    assert residency.arrived(1, B, 1.0) == [Stop("a", "evicted")]
    assert residency.lease_asked(7, 1.0, unload=False) == []
    assert residency.gone("a", 2.0) == [Grant(7)]
    assert residency.lease_ended(7, 3.0) == [Spawn("b")]


def test_leases_of_the_machine_come_one_after_the_other() -> None:
    residency = Residency(1)
    serving(residency, A)
    assert residency.lease_asked(7, 1.0, unload=False) == [Lease("a")]
    assert residency.taken("a", 1.0) == [Grant(7)]
    assert residency.lease_asked(8, 2.0, unload=False) == []
    assert residency.lease_ended(7, 3.0) == [Grant(8)]
    assert residency.lease_ended(8, 4.0) == [GiveBack("a")]


def test_a_lease_that_is_given_up_before_it_was_granted_leaves_nothing() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    assert residency.lease_asked(7, 1.0, unload=False) == []
    residency.arrived(2, A, 2.0)
    assert residency.lease_ended(7, 3.0) == [Admit(2, "a")]


def test_idle_time_begins_anew_after_a_lease() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.lease_asked(7, 1.0, unload=False)
    residency.taken("a", 1.0)
    assert residency.tick(5000.0) == []
    residency.lease_ended(7, 5000.0)
    assert residency.tick(5001.0) == []


# The machine, and the configuration.


def test_under_pressure_idle_workers_trim_once_and_then_leave() -> None:
    residency = Residency(4)
    serving(residency, A, B, traits("p", pinned=True))
    residency.arrived(1, B, 1.0)
    assert residency.press(1.0, trim=True, unload=False) == [Trim("a"), Trim("p")]
    assert residency.press(2.0, trim=True, unload=False) == []
    assert residency.press(3.0, trim=True, unload=True) == [Stop("a", "pressure")]
    assert residency.arrived(2, C, 4.0) == []
    assert residency.waiting(4.0)[0].reason == "pressure"
    assert residency.left(1, 5.0) == [Stop("b", "pressure")]
    residency.gone("a", 6.0)
    assert residency.press(7.0, trim=False, unload=False) == [Spawn("c")]


def test_a_model_that_is_not_configured_any_more_serves_who_waits_and_leaves() -> None:
    residency = Residency(1)
    serving(residency, A)
    residency.arrived(1, A, 1.0)
    assert residency.retire("a", 2.0) == []
    assert residency.left(1, 3.0) == [Stop("a", "removed")]


def test_changed_settings_count_at_once() -> None:
    residency = Residency(1)
    serving(residency, A)
    assert residency.change(traits("a", pinned=True), 1.0) == []
    assert refused(residency.arrived(1, B, 2.0)) == {1: Why.PINNED}


def test_models_that_take_turns_change_places_at_each() -> None:
    """What it costs is for `make bench`."""
    residency = Residency(1)
    models = [traits(name) for name in "abc"]
    loads = 0
    queue: list[Action] = []
    for request in range(3000):
        queue += residency.arrived(request, models[request % 3], float(request))
        while queue:
            match queue.pop(0):
                case Spawn(model):
                    loads += 1
                    queue += residency.ready(model, float(request))
                case Admit(served, _):
                    queue += residency.left(served, float(request))
                case Stop(model, _):
                    queue += residency.gone(model, float(request))
                case _:
                    pass
    assert loads == 3000

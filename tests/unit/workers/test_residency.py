"""The residency policy by example; `test_residency_machine.py` looks for what nobody thought of."""

import pytest

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    Spawn,
    Stop,
    Why,
)
from supervisor.workers.residency import Residency
from tests.unit.workers.residency_examples import A, B, C, admitted, refused, serving, traits


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

"""The residency policy by example: loads that fail, leases, pressure, changed settings."""

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    GiveBack,
    Grant,
    Lease,
    Spawn,
    Stop,
    Trim,
    Why,
)
from supervisor.workers.residency import Residency
from tests.unit.workers.residency_examples import A, B, C, refused, serving, traits

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


def test_a_model_that_is_unloaded_by_hand_during_a_lease_does_not_wait_for_its_end() -> None:
    """It was `draining` for as long as the lease lasted, and whoever had asked for it waited."""
    residency = Residency(3)
    serving(residency, A, B)
    residency.lease_asked(7, 1.0, unload=False)
    residency.taken("a", 1.0)
    assert residency.taken("b", 1.0) == [Grant(7)]
    assert residency.unload("a", 2.0) == [Drain("a"), GiveBack("a"), Stop("a", "unloaded")]
    # Who came before is served by that very worker, when the lease has ended.
    residency.arrived(1, B, 3.0)
    assert residency.gone("a", 4.0) == []
    assert residency.lease_ended(7, 5.0) == [GiveBack("b"), Admit(1, "b")]


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

"""The residency policy against every order of events: a model of the world checks each action."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.workers.actions import Traits
from tests.unit.workers.residency_world import BY_ID, MODELS, World

LARGEST = sum(model.cost_bytes for model in MODELS)
WALK_STEPS = 500_000
EBB_STEPS = 100
"""After so many steps all that waits is answered before it goes on."""


class Machine(RuleBasedStateMachine):
    """Chooses what happens, and finds the shortest way to what goes wrong."""

    world: World | None = None

    @initialize(budget=st.integers(2, LARGEST))
    def begin(self, budget: int) -> None:
        self.world = World(budget)

    @property
    def there(self) -> World:
        assert self.world is not None
        return self.world

    @rule(
        model=st.sampled_from(MODELS),
        by_hand=st.booleans(),
        again=st.booleans(),
        wait=st.floats(0, 20, allow_nan=False),
    )
    def arrives(self, model: Traits, by_hand: bool, again: bool, wait: float) -> None:
        self.there.arrives(model, by_hand=by_hand, again=again, wait_s=wait)

    @precondition(lambda self: self.there.running or self.there.cut)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self.there.finish(data.draw(st.sampled_from(sorted(self.there.running | self.there.cut))))

    @precondition(lambda self: self.there.waiting)
    @rule(data=st.data())
    def gives_up_waiting(self, data: st.DataObject) -> None:
        self.there.give_up(data.draw(st.sampled_from(sorted(self.there.waiting))))

    @precondition(lambda self: self.there.those("loading"))
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        self.there.serve(data.draw(st.sampled_from(self.there.those("loading"))))

    @precondition(lambda self: self.there.those("loading") or self.there.those("serving"))
    @rule(data=st.data(), fails=st.booleans())
    def dies(self, data: st.DataObject, fails: bool) -> None:
        living = self.there.those("loading") + self.there.those("serving")
        self.there.die(data.draw(st.sampled_from(living)), fails=fails)

    @precondition(lambda self: self.there.those("loading"))
    @rule(data=st.data())
    def runs_out_of_memory(self, data: st.DataObject) -> None:
        self.there.runs_out_of_memory(data.draw(st.sampled_from(self.there.those("loading"))))

    @precondition(lambda self: self.there.those("ending"))
    @rule(data=st.data())
    def is_reaped(self, data: st.DataObject) -> None:
        self.there.end(data.draw(st.sampled_from(self.there.those("ending"))))

    @precondition(lambda self: self.there.can_be_kept())
    @rule(data=st.data())
    def is_kept_for_a_lease(self, data: st.DataObject) -> None:
        self.there.keep(data.draw(st.sampled_from(self.there.can_be_kept())))

    @precondition(lambda self: self.there.can_be_leased())
    @rule(data=st.data())
    def is_leased(self, data: st.DataObject) -> None:
        self.there.lease(data.draw(st.sampled_from(self.there.can_be_leased())))

    @precondition(lambda self: self.there.leased)
    @rule(data=st.data())
    def is_given_back(self, data: st.DataObject) -> None:
        self.there.give_back(data.draw(st.sampled_from(sorted(self.there.leased))))

    @rule(unload=st.booleans())
    def somebody_wants_the_machine(self, unload: bool) -> None:
        self.there.want_machine(unload=unload)

    @precondition(lambda self: self.there.can_be_taken())
    @rule(data=st.data())
    def is_taken(self, data: st.DataObject) -> None:
        self.there.take(data.draw(st.sampled_from(self.there.can_be_taken())))

    @precondition(lambda self: self.there.machine)
    @rule(data=st.data())
    def machine_is_given_back(self, data: st.DataObject) -> None:
        self.there.give_machine_back(data.draw(st.sampled_from(sorted(self.there.machine))))

    @precondition(lambda self: self.there.processes)
    @rule(data=st.data(), more=st.integers(0, 3))
    def grows(self, data: st.DataObject, more: int) -> None:
        self.there.grow(data.draw(st.sampled_from(sorted(self.there.processes))), more)

    @precondition(lambda self: self.there.can_want_more())
    @rule(data=st.data(), more=st.integers(1, LARGEST))
    def row_needs_more(self, data: st.DataObject, more: int) -> None:
        self.there.want_more(data.draw(st.sampled_from(self.there.can_want_more())), more)

    @precondition(lambda self: self.there.can_grow())
    @rule(data=st.data(), more=st.integers(1, LARGEST))
    def row_grows(self, data: st.DataObject, more: int) -> None:
        self.there.want_more(data.draw(st.sampled_from(self.there.can_grow())), more, goes_on=True)

    @precondition(lambda self: self.there.can_stall())
    @rule(data=st.data())
    def row_stalls(self, data: st.DataObject) -> None:
        self.there.stall(data.draw(st.sampled_from(self.there.can_stall())))

    @precondition(lambda self: self.there.mail)
    @rule(data=st.data())
    def share_is_heard(self, data: st.DataObject) -> None:
        self.there.deliver(data.draw(st.sampled_from(sorted(self.there.mail))))

    @precondition(lambda self: self.there.processes)
    @rule(data=st.data())
    def is_read(self, data: st.DataObject) -> None:
        self.there.read(data.draw(st.sampled_from(sorted(self.there.processes))))

    @precondition(lambda self: self.there.trims)
    @rule(data=st.data())
    def is_trimmed(self, data: st.DataObject) -> None:
        self.there.trim(data.draw(st.sampled_from(sorted(self.there.trims))))

    @rule(unload=st.booleans())
    def memory_is_short(self, unload: bool) -> None:
        self.there.press(unload=unload)

    @rule(budget=st.integers(1, LARGEST))
    def budget_changes(self, budget: int) -> None:
        self.there.change_budget(budget)

    @rule(model=st.sampled_from(MODELS))
    def unload_is_asked(self, model: Traits) -> None:
        self.there.unload(model.id)

    @rule(wait=st.floats(0, 200, allow_nan=False))
    def time_passes(self, wait: float) -> None:
        self.there.pass_time(wait)

    @precondition(lambda self: self.there.next > 20)
    @rule()
    def everything_ends(self) -> None:
        self.there.shut_down()

    @invariant()
    def holds(self) -> None:
        if self.world is not None:
            self.world.check()

    def teardown(self) -> None:
        if self.world is not None:
            self.world.answer_everybody()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)


def walk(seed: int, steps: int) -> World:
    """Random steps through one world."""
    chance = random.Random(seed)
    world = World(chance.randint(6, LARGEST))
    for number in range(1, steps + 1):
        step(world, chance)
        world.check()
        if number % EBB_STEPS == 0:
            world.answer_everybody()
    return world


def step(world: World, chance: random.Random) -> None:
    """One thing that can happen; likely ones are likelier."""
    alive = world.those("loading") + world.those("serving")
    weights = (30, 15, 5, 20, 20, 10, 2, 1, 2, 4, 1, 3, 1, 1, 1, 20, 60, 10, 10, 10, 5)
    match chance.choices(range(len(weights)), weights)[0]:
        case 0:
            many = chance.random() < 0.1
            model = chance.choice(MODELS)
            world.arrives(model, by_hand=many, again=False, wait_s=chance.choice((0.0, 0.1, 3.0)))
        case 1 if world.running or world.cut:
            world.finish(chance.choice(sorted(world.running | world.cut)))
        case 2 if world.waiting:
            world.give_up(chance.choice(sorted(world.waiting)))
        case 3 if loading := world.those("loading"):
            world.serve(chance.choice(loading))
        case 4 if ending := world.those("ending"):
            world.end(chance.choice(ending))
        case 5:
            world.pass_time(chance.choice((0.1, 1.0, 6.0, 30.0)))
        case 6 if alive:
            world.die(chance.choice(alive), fails=chance.random() < 0.3)
        case 7 if loading := world.those("loading"):
            world.runs_out_of_memory(chance.choice(loading))
        case 8 if can := world.can_be_leased():
            world.lease(chance.choice(can))
        case 9 if world.leased:
            world.give_back(chance.choice(sorted(world.leased)))
        case 10 if len(world.machine) < 2:
            world.want_machine(unload=chance.random() < 0.5)
        case 11 if world.machine or world.asked:
            if (can := world.can_be_taken()) and chance.random() < 0.8:
                world.take(chance.choice(can))
            elif world.machine:
                world.give_machine_back(chance.choice(sorted(world.machine)))
        case 12:
            world.unload(chance.choice(sorted(BY_ID)))
        case 13 if world.processes:
            world.grow(chance.choice(sorted(world.processes)), chance.randint(0, 2))
        case 14:
            world.press(unload=not world.pressed and chance.random() < 0.3)
        case 15 if can_want := world.can_want_more():
            world.want_more(chance.choice(can_want), chance.choice((1, 1, 2, 3, 5, 8)))
        case 16 if world.mail:
            world.deliver(chance.choice(sorted(world.mail)))
        case 17 if world.processes:
            world.read(chance.choice(sorted(world.processes)))
        case 18 if world.trims:
            world.trim(chance.choice(sorted(world.trims)))
        case 19 if can_grow := world.can_grow():
            world.want_more(chance.choice(can_grow), chance.choice((1, 1, 2, 3)), goes_on=True)
        case 20 if can_stall := world.can_stall():
            world.stall(chance.choice(can_stall))
        case _:
            pass


def test_a_walk() -> None:
    world = walk(seed=3, steps=5_000)
    assert world.next > 500
    assert min(world.answered.values()) > 5, "asks are given, denied and given back"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_long_walks() -> None:
    for seed in range(2, 2 + WALK_STEPS // 10_000):
        walk(seed, 10_000)

"""The residency policy against every order of events: a model of the world checks each action."""

from collections.abc import Iterable
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    Refuse,
    Spawn,
    Stop,
    Traits,
    Why,
)
from supervisor.workers.residency import Residency

MODELS = [
    Traits("a", max_concurrency=2, queue=3, idle_unload_s=50.0),
    Traits("b", max_concurrency=1, queue=0, idle_unload_s=100.0),
    Traits("c", max_concurrency=1, queue=5, idle_unload_s=1e9),
    Traits("p", max_concurrency=2, queue=2, idle_unload_s=10.0, pinned=True),
]
BY_ID = {model.id: model for model in MODELS}
Process = Literal["loading", "serving", "ending"]


class World(RuleBasedStateMachine):
    """Processes, requests and leases as they really are; the policy only hears of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next = 0
        self.processes: dict[str, Process] = {}
        self.reasons: dict[str, str] = {}
        self.draining: set[str] = set()
        self.turn: dict[str, set[int]] = {}
        """Who waited when the model became ready, or was given back."""
        self.failed: set[str] = set()
        self.leased: set[str] = set()
        self.waiting: dict[int, str] = {}
        self.running: dict[int, str] = {}
        self.cut: dict[int, str] = {}
        """Admitted to a process that has died; their end is not yet told."""
        self.answered: set[int] = set()
        self.closing = False

    @initialize(places=st.integers(1, 3))
    def begin(self, places: int) -> None:
        self.places = places
        self.policy = Residency(places)

    # What the policy does, checked against the world.

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Spawn(model):
                    assert model not in self.processes, "a second process for one model"
                    assert len(self.processes) < self.places, "more processes than places"
                    assert model not in self.failed and not self.closing
                    assert model in self.waiting.values(), "a load that nobody asked for"
                    self.processes[model] = "loading"
                case Admit(request, model):
                    assert self.waiting.pop(request) == model, "admitted twice, or to another model"
                    assert self.processes[model] == "serving" and model not in self.leased
                    assert model not in self.draining or request in self.turn[model]
                    self.running[request] = model
                    assert self.held(model) <= BY_ID[model].window
                case Refuse(request, model, why):
                    assert self.waiting.pop(request) == model
                    assert (why is Why.FAILED) == (model in self.failed and not self.closing)
                    self.answered.add(request)
                case Drain(model):
                    assert self.processes[model] == "serving"
                    self.draining.add(model)
                case Stop(model, reason):
                    self.check_stop(model, reason)
                    self.processes[model] = "ending"
                    self.reasons[model] = reason

    def check_stop(self, model: str, reason: str) -> None:
        assert self.count(self.running, model) == 0, "an answer in flight was cut"
        assert self.processes[model] != "ending", "stopped twice"
        if reason in ("evicted", "idle"):
            assert self.processes[model] == "serving", "a loading model was a victim"
            assert model not in self.leased and not BY_ID[model].pinned
        if reason == "idle":
            assert model not in self.waiting.values()
        if reason == "evicted":
            wanted = len(set(self.waiting.values()) - self.processes.keys())
            leaving = len(set(self.those("ending")) | self.draining)
            assert wanted > self.places - len(self.processes) + leaving, "more left than had to"

    @staticmethod
    def count(requests: dict[int, str], model: str) -> int:
        return sum(wanted == model for wanted in requests.values())

    def held(self, model: str) -> int:
        return self.count(self.running, model) + self.count(self.cut, model)

    def those(self, state: Process) -> list[str]:
        return sorted(model for model, process in self.processes.items() if process == state)

    # What happens.

    @rule(
        model=st.sampled_from(MODELS),
        by_hand=st.booleans(),
        again=st.booleans(),
        wait=st.floats(0, 20, allow_nan=False),
    )
    def arrives(self, model: Traits, by_hand: bool, again: bool, wait: float) -> None:
        self.now += wait
        request = self.next
        self.next += 1
        self.waiting[request] = model.id
        if by_hand:
            self.failed.discard(model.id)
        room = self.count(self.waiting, model.id) + self.held(model.id) <= model.limit
        actions = self.policy.arrived(request, model, self.now, by_hand=by_hand, again=again)
        for action in actions:
            if isinstance(action, Refuse) and action.request == request:
                assert action.why is not Why.QUEUE_FULL or not (room or by_hand or again)
        self.carry_out(actions)

    @precondition(lambda self: self.running or self.cut)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(sorted(self.running | self.cut))))

    def finish(self, request: int) -> None:
        self.running.pop(request, None)
        self.cut.pop(request, None)
        self.answered.add(request)
        self.carry_out(self.policy.left(request, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def gives_up_waiting(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[request]
        self.answered.add(request)
        self.carry_out(self.policy.left(request, self.now))

    @precondition(lambda self: self.those("loading"))
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        self.serve(data.draw(st.sampled_from(self.those("loading"))))

    def serve(self, model: str) -> None:
        self.processes[model] = "serving"
        self.turn[model] = {request for request, wanted in self.waiting.items() if wanted == model}
        self.carry_out(self.policy.ready(model, self.now))

    @precondition(lambda self: self.those("loading") or self.those("serving"))
    @rule(data=st.data(), fails=st.booleans())
    def dies(self, data: st.DataObject, fails: bool) -> None:
        model = data.draw(st.sampled_from(self.those("loading") + self.those("serving")))
        self.leased.discard(model)
        self.cut |= {request: wanted for request, wanted in self.running.items() if wanted == model}
        self.running = {request: wanted for request, wanted in self.running.items() if wanted != model}
        if model in self.draining:
            # One that was to end anyway is not replaced.
            self.end(model)
        elif fails:
            del self.processes[model]
            self.failed.add(model)
            self.carry_out(self.policy.failed(model))
        else:
            self.processes[model] = "loading"
            self.carry_out(self.policy.restarting(model))

    @precondition(lambda self: self.those("ending"))
    @rule(data=st.data())
    def is_reaped(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.those("ending"))))

    def end(self, model: str) -> None:
        del self.processes[model]
        self.draining.discard(model)
        self.leased.discard(model)
        self.carry_out(self.policy.gone(model))

    @precondition(lambda self: self.kept_ones())
    @rule(data=st.data())
    def is_kept_for_a_lease(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.kept_ones()))
        self.processes[model] = "serving"
        self.leased.add(model)
        self.carry_out(self.policy.kept(model))

    def kept_ones(self) -> list[str]:
        return [model for model in self.those("ending") if self.reasons[model] in ("evicted", "idle")]

    @precondition(lambda self: self.those("serving"))
    @rule(data=st.data())
    def is_leased(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.those("serving")))
        self.leased.add(model)
        self.carry_out(self.policy.lease(model, held=True))

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def is_given_back(self, data: st.DataObject) -> None:
        self.give_back(data.draw(st.sampled_from(sorted(self.leased))))

    def give_back(self, model: str) -> None:
        self.leased.discard(model)
        self.turn[model] = {request for request, wanted in self.waiting.items() if wanted == model}
        if self.processes[model] == "serving":
            self.carry_out(self.policy.lease(model, held=False))

    @rule(model=st.sampled_from(MODELS))
    def unload_is_asked(self, model: Traits) -> None:
        self.failed.discard(model.id)
        self.carry_out(self.policy.unload(model.id))

    @rule(wait=st.floats(0, 200, allow_nan=False))
    def time_passes(self, wait: float) -> None:
        self.now += wait
        self.carry_out(self.policy.tick(self.now))
        later = self.policy.next_tick()
        assert later is None or later > self.now

    @precondition(lambda self: self.next > 20)
    @rule()
    def everything_ends(self) -> None:
        self.closing = True
        self.carry_out(self.policy.shutdown())

    # What must always hold.

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        for model in BY_ID:
            assert self.policy.in_flight(model) == self.held(model)
            assert self.policy.queued(model) == self.count(self.waiting, model)
        assert sum(waiting.count for waiting in self.policy.waiting(self.now)) == len(self.waiting)

    @invariant()
    def nobody_waits_beside_an_idle_worker(self) -> None:
        for model in self.those("serving"):
            if model in self.leased or model in self.draining or self.held(model):
                continue
            assert not self.count(self.waiting, model), f"{model} is idle and requests wait for it"

    def teardown(self) -> None:
        """When every process gets on, every answer ends and every lease is given back, all are answered."""
        if not hasattr(self, "policy"):
            return
        for _ in range(20 * (len(self.waiting) + len(self.running) + len(self.cut) + len(MODELS))):
            if not self.waiting:
                break
            for model in sorted(self.leased):
                self.give_back(model)
            for request in sorted(self.running | self.cut):
                self.finish(request)
            for model in self.those("ending"):
                self.end(model)
            for model in self.those("loading"):
                self.serve(model)
        assert not self.waiting, "somebody waits for ever"
        self.counts_agree()


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=60, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)

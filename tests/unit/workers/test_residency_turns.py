"""Who waits how long when models take turns: the policy with a clock of its own."""

import heapq
import itertools
from typing import Literal

from supervisor.workers.actions import Action, Admit, Spawn, Stop, Traits
from supervisor.workers.residency import Residency

LOAD_S = 2.0
ANSWER_S = 1.0
THOUGHT_S = 0.5
HOLD_S = 5.0
What = Literal["asks", "ready", "left", "gone", "tick"]


class Turns:
    """Agents that ask their models one after the other and think in between, and room for one model."""

    def __init__(self, models: list[list[str]], each: int) -> None:
        """`models` are, for each agent, the models that it asks in turn; it asks `each` times in all."""
        self._policy = Residency(1)
        self._models = models
        self._each = each
        self._todo: list[tuple[float, int, What, str, int]] = []
        self._order = itertools.count()
        self._asked = [0] * len(models)
        self._came_s: dict[int, float] = {}
        self.answers = self.loads = 0
        self.longest_s = 0.0

    def run(self) -> None:
        for agent in range(len(self._models)):
            self._later(0.1 * agent, "asks", "", agent)
        while self._todo:
            now, _, what, model, number = heapq.heappop(self._todo)
            self._act(self._happens(what, model, number, now), now)
            if (due_s := self._policy.next_tick(now)) is not None:
                self._later(max(due_s, now + 0.001), "tick", "", 0)

    def _happens(self, what: What, model: str, number: int, now: float) -> list[Action]:
        match what:
            case "asks":
                agent, turn = number, self._asked[number]
                self._asked[agent] += 1
                mine = self._models[agent]
                request = agent + len(self._models) * turn
                self._came_s[request] = now
                return self._policy.arrived(request, Traits(mine[turn % len(mine)], hold_s=HOLD_S), now)
            case "left":
                self.answers += 1
                agent = number % len(self._models)
                if self._asked[agent] < self._each:
                    self._later(now + THOUGHT_S, "asks", "", agent)
                return self._policy.left(number, now)
            case "ready":
                return self._policy.ready(model, now)
            case "gone":
                return self._policy.gone(model, now)
            case "tick":
                return self._policy.tick(now)

    def _act(self, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case Spawn(model):
                    self.loads += 1
                    self._later(now + LOAD_S, "ready", model, 0)
                case Stop(model, _):
                    self._later(now + 0.1, "gone", model, 0)
                case Admit(request, model):
                    self.longest_s = max(self.longest_s, now - self._came_s[request])
                    self._later(now + ANSWER_S, "left", model, request)
                case _:
                    raise AssertionError(action)

    def _later(self, at: float, what: What, model: str, number: int) -> None:
        heapq.heappush(self._todo, (at, next(self._order), what, model, number))


def test_one_client_that_goes_from_model_to_model_waits_for_loads_alone() -> None:
    """The only client there is waited `hold` each time, for himself."""
    turns = Turns([["a", "b"]], each=20)
    turns.run()
    assert (turns.answers, turns.loads) == (20, 20)
    assert turns.longest_s < LOAD_S + 0.2


def test_agents_on_a_model_each_share_turns() -> None:
    """They think for a moment between two questions: a model is there for more than one of them."""
    for agents in (2, 3):
        turns = Turns([[f"model-{agent}"] for agent in range(agents)], each=51)
        turns.run()
        assert turns.answers == 51 * agents
        assert turns.loads <= turns.answers / 2
        # The turn of each of the others and its two further ones, and the loads between them.
        assert turns.longest_s <= (agents - 1) * (3 * (ANSWER_S + HOLD_S) + LOAD_S + 0.2) + LOAD_S


def test_many_clients_that_go_from_model_to_model_share_turns_too() -> None:
    orders = [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    turns = Turns([orders[client % 3] for client in range(10)], each=10)
    turns.run()
    assert turns.answers == 100
    assert turns.loads <= 50

"""Processes, requests and leases as they really are; the policy only hears of them, and each of its actions
is checked."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    GiveBack,
    Grant,
    Lease,
    Refuse,
    Share,
    Spawn,
    Stop,
    Traits,
    Trim,
    Why,
)
from supervisor.workers.residency import Residency
from supervisor.workers.resident import FURTHER_TURNS, Resident

MODELS = [
    Traits("a", cost_bytes=4, max_concurrency=2, queue=3, idle_unload_s=50.0, hold_s=5.0),
    Traits("b", cost_bytes=3, max_concurrency=1, queue=0, idle_unload_s=100.0),
    Traits("c", cost_bytes=6, max_concurrency=1, queue=5, idle_unload_s=1e9, hold_s=2.0, priority=3),
    Traits("d", cost_bytes=1, max_concurrency=2, queue=9, idle_unload_s=20.0, hold_s=9.0, priority=-1),
    Traits("p", cost_bytes=2, max_concurrency=2, queue=2, idle_unload_s=10.0, pinned=True),
    Traits("x", cost_bytes=2, max_concurrency=2, queue=2, hold_s=1.0, exclusive=True),
]
BY_ID = {model.id: model for model in MODELS}
MOST_WAITING = 12
Process = Literal["loading", "serving", "ending"]


@dataclass
class Ask:
    """A row that needs more than its worker may take."""

    request: int
    more: int
    """Bytes beyond what its model costs."""
    goes_on: bool
    """It runs and will need so much soon. Else it waits for it."""
    stalled: bool = False
    """It has come to the end of what it was let have."""


class WatchedPolicy:
    """The policy, and what is really there: its actions are carried out, and each of them is checked."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.policy = Residency(budget, max_waiting=MOST_WAITING)
        self.now = 0.0
        self.next = 0
        self.processes: dict[str, Process] = {}
        self.books: dict[str, int] = {}
        """What the workers were last read to hold."""
        self.kept: dict[str, tuple[int, int]] = {}
        """What a worker holds beyond its cost: all in all, and what it can't give back."""
        self.may: dict[str, int] = {}
        """What a worker takes for its share."""
        self.heard: dict[str, Share] = {}
        self.mail: dict[str, list[Share]] = {}
        """What is on its way, and what will be told next."""
        self.large: dict[str, tuple[int, int]] = {}
        """The row that a worker has let in beyond its cost: its request, and bytes."""
        self.asks: dict[str, Ask] = {}
        self.trims: set[str] = set()
        self.allowed = budget
        """The budget, or what was held when it became smaller or something grew by itself."""
        self.answered = {"given": 0, "grown": 0, "denied": 0, "back": 0}
        self.cuts = 0
        """Answers that ended because they and another one needed each other's room."""
        self.reasons: dict[str, str] = {}
        self.served: set[str] = set()
        """Whose process, or one before it in the same residency, has been ready."""
        self.draining: set[str] = set()
        self.turn: dict[str, set[int]] = {}
        """Who waited when the model became ready, or was given back."""
        self.begun: dict[tuple[str, str], int] = {}
        """(who waits for room, behind whom) -> turns that the latter began meanwhile."""
        self.batch: dict[str, tuple[set[int], float]] = {}
        """Who waited when the model's turn began, and when that was."""
        self.came_s: dict[int, float] = {}
        self.failed: set[str] = set()
        self.leased: set[str] = set()
        self.waiting: dict[int, str] = {}
        self.running: dict[int, str] = {}
        self.cut: dict[int, str] = {}
        """Admitted to a process that has died; their end is not yet told."""
        self.machine: dict[int, bool] = {}
        """Leases of the machine -> whether without models."""
        self.asked: set[str] = set()
        self.taken: set[str] = set()
        self.granted: int | None = None
        self.pressed = False
        self.closing = False

    # What the policy does, checked against the world.

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Spawn(model):
                    self.check_spawn(model)
                    self.processes[model] = "loading"
                    self.books[model] = BY_ID[model].cost_bytes
                    self.launch(model)
                    assert self.may_hold() <= self.budget, "over the budget"
                case Admit(request, model):
                    self.check_admit(request, model)
                    self.running[request] = model
                    assert self.held(model) <= BY_ID[model].window
                case Refuse(request, model, why):
                    assert self.waiting.pop(request) == model
                    self.check_refusal(model, why)
                case Drain(model):
                    assert self.processes[model] == "serving"
                    self.draining.add(model)
                    # What comes from now on waits for another worker.
                    self.turn[model] = self.those_waiting(model)
                case Stop(model, reason):
                    self.check_stop(model, reason)
                    self.processes[model] = "ending"
                    self.reasons[model] = reason
                case Trim(model):
                    known = self.policy.model(model)
                    assert known is not None and self.processes[model] == "serving"
                    assert known.wanted_bytes or not self.count(self.running, model)
                    self.trims.add(model)
                case Lease(model):
                    assert self.machine and model not in self.asked | self.taken
                    assert self.processes[model] == "serving" and not self.count(self.running, model)
                    self.asked.add(model)
                case GiveBack(model):
                    assert model in self.asked | self.taken
                    self.asked.discard(model)
                    self.taken.discard(model)
                    self.turn[model] = self.those_waiting(model)
                    self.begin_turn(model, set())
                case Grant(lease):
                    assert next(iter(self.machine)) == lease and self.granted is None
                    assert not self.running, "the machine was given away while a request ran"
                    assert set(self.processes) == self.taken
                    assert not (self.machine[lease] and self.processes)
                    self.granted = lease
        self.note_turns()
        if self.policy.unshared:
            self.post(self.policy.share_out())

    def post(self, shares: dict[str, Share]) -> None:
        for model, share in shares.items():
            assert self.processes[model] == "serving"
            if share.cut:
                others = [known for known in self.known() if known.traits.id != model]
                assert share.back and any(known.goes_on for known in others), "an answer was cut for nobody"
            mail = self.mail.get(model, [])
            if (mail[-1] if mail else self.heard.get(model)) != share:
                self.mail[model] = [*mail[:1], share]
        self.check_memory()

    def launch(self, model: str) -> None:
        self.may[model] = BY_ID[model].cost_bytes
        self.kept[model] = (0, 0)
        for kept in (self.heard, self.mail, self.asks, self.large):
            kept.pop(model, None)
        self.trims.discard(model)
        assert self.policy.share_of(model) <= self.may[model], "more than its launch record says"

    def holds(self, model: str) -> int:
        _, row = self.large.get(model, (0, 0))
        return BY_ID[model].cost_bytes + max(self.kept[model][0], row)

    def may_hold(self) -> int:
        """What all workers hold or think that they may."""
        told = {model: max(share.bytes for share in mail) for model, mail in self.mail.items()}
        return sum(
            max(self.holds(model), self.may[model], told.get(model, 0), self.books[model])
            for model in self.processes
        )

    def check_memory(self) -> None:
        held = self.may_hold()
        self.allowed = max(self.budget, min(self.allowed, held))
        assert held <= self.allowed, "workers may take more than there is"

    def grown(self) -> None:
        """What is beyond the budget now is none of the policy's doing."""
        self.allowed = max(self.allowed, self.may_hold())

    def check_spawn(self, model: str) -> None:
        assert model not in self.processes, "a second process for one model"
        assert model not in self.failed and not self.closing and not self.machine and not self.pressed
        assert model in self.waiting.values(), "a load that nobody asked for"
        alone = [BY_ID[name].exclusive for name in (model, *self.processes)]
        assert not any(alone) or len(alone) == 1, "an exclusive model has company"

    def check_admit(self, request: int, model: str) -> None:
        assert self.waiting.pop(request) == model, "admitted twice, or to another model"
        assert self.processes[model] == "serving" and not self.machine
        assert model not in self.leased | self.asked | self.taken
        assert model not in self.draining or request in self.turn[model]
        known = self.policy.model(model)
        assert known is not None
        batch, since_s = self.batch.get(model, (set(), 0.0))
        # With places for one, a turn is empty for a moment between two of its requests.
        if request in batch and (self.held(model) or BY_ID[model].window == 1):
            return
        if self.held(model) and known.yielding:
            assert self.came_s[request] <= since_s + BY_ID[model].hold_s, "a turn goes on for ever"
            return
        self.begin_turn(model, {request})
        if known.yielding:
            for waiter, behind in self.begun:
                if behind == model:
                    self.begun[waiter, behind] += 1
                    assert self.begun[waiter, behind] <= FURTHER_TURNS + 1, f"{waiter} starves"

    def begin_turn(self, model: str, first: set[int]) -> None:
        self.batch[model] = (first | self.those_waiting(model), self.now)

    def check_refusal(self, model: str, why: Why) -> None:
        if self.closing:
            assert why is Why.STOPPING
            return
        assert (why is Why.FAILED) == (model in self.failed)
        if why is Why.TOO_LARGE:
            assert BY_ID[model].cost_bytes > self.budget
        if why is Why.PINNED:
            assert "p" in self.processes and "p" not in self.draining
            alone = BY_ID[model].exclusive
            assert alone or self.books["p"] + BY_ID[model].cost_bytes > self.budget
        if why is Why.CROWDED:
            assert len(self.waiting) >= MOST_WAITING

    def check_stop(self, model: str, reason: str) -> None:
        assert not self.count(self.running, model), "an answer in flight was cut"
        assert self.processes[model] != "ending", "stopped twice"
        waits = self.those_waiting(model)
        match reason:
            case "evicted" | "idle" | "pressure":
                assert self.processes[model] == "serving", "a loading model was a victim"
                assert model not in self.leased | self.taken and not BY_ID[model].pinned
                assert reason == "evicted" or not waits
                assert reason != "pressure" or self.pressed
            case "abandoned":
                assert self.processes[model] == "loading" and model not in self.served
                assert not waits and not BY_ID[model].pinned
            case "leased":
                assert next(iter(self.machine.values())), "nobody wanted it without models"
        if reason == "evicted":
            wanted = set(self.waiting.values()) - self.processes.keys()
            # One that asks goes when its row has been served.
            asks = {known.traits.id for known in self.known() if known.wanted_bytes}
            going = {name for name in self.processes if self.is_going(name)} - asks
            left = self.budget - sum(book for name, book in self.books.items() if name not in going)
            more = sum(max(0, known.lack_bytes) for known in self.known())
            lacks = left < sum(BY_ID[name].cost_bytes for name in wanted) + more
            alone = any(BY_ID[name].exclusive for name in (*wanted, model))
            assert left < 0 or (wanted and (lacks or alone)) or (more and lacks), "more left than had to"

    def is_going(self, model: str) -> bool:
        return self.processes[model] == "ending" or model in self.draining

    @staticmethod
    def count(requests: dict[int, str], model: str) -> int:
        return sum(wanted == model for wanted in requests.values())

    def held(self, model: str) -> int:
        return self.count(self.running, model) + self.count(self.cut, model)

    def those(self, state: Process) -> list[str]:
        return sorted(model for model, process in self.processes.items() if process == state)

    def known(self) -> list[Resident]:
        """What the policy knows of the models that have a process."""
        return [known for model in self.processes if (known := self.policy.model(model)) is not None]

    def those_waiting(self, model: str) -> set[int]:
        return {request for request, wanted in self.waiting.items() if wanted == model}

    def note_turns(self) -> None:
        """Who waits behind whom now; turns are counted as long as that lasts."""
        pairs = {
            (model, behind)
            for model in BY_ID
            if (known := self.policy.model(model)) is not None
            and ((known.phase == "absent" and known.waiting) or known.wanted_bytes)
            for behind in known.behind
            if (other := self.policy.model(behind)) is not None and other.yielding
        }
        self.begun = {pair: self.begun.get(pair, 0) for pair in pairs}

    def forget_turns(self, model: str) -> None:
        """What it begins next is none of its own doing."""
        self.begun = {pair: 0 if pair[1] == model else turns for pair, turns in self.begun.items()}

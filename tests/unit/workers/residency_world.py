"""Processes, requests and leases as they really are; the policy only hears of them, and each of its actions
is checked. Whoever drives a world chooses what happens next."""

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


class World:
    """The policy and everything around it. Methods with a `draw` in their place choose at random outside."""

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

    # What happens.

    def arrives(self, model: Traits, *, by_hand: bool, again: bool, wait_s: float) -> None:
        self.now += wait_s
        request = self.next
        self.next += 1
        room = self.count(self.waiting, model.id) + self.held(model.id) < model.limit
        self.waiting[request] = model.id
        self.came_s[request] = self.now
        if by_hand:
            self.failed.discard(model.id)
        known = self.policy.model(model.id)
        usual = not (by_hand or again) and known is not None and known.traits == model
        # Half of those that might be are asked for as the pool asks for most.
        if usual and request % 2 and self.policy.admit_at_once(request, model.id, self.now):
            actions: list[Action] = [Admit(request, model.id)]
        else:
            actions = self.policy.arrived(request, model, self.now, by_hand=by_hand, again=again)
        for action in actions:
            if isinstance(action, Refuse) and action.request == request:
                assert action.why is not Why.QUEUE_FULL or not (room or by_hand or again)
                assert action.why is not Why.CROWDED or not (by_hand or again)
        self.carry_out(actions)

    def finish(self, request: int) -> None:
        self.asks = {model: ask for model, ask in self.asks.items() if ask.request != request}
        self.large = {model: row for model, row in self.large.items() if row[0] != request}
        self.running.pop(request, None)
        self.cut.pop(request, None)
        self.carry_out(self.policy.left(request, self.now))

    def give_up(self, request: int) -> None:
        model = self.waiting.pop(request)
        self.turn.get(model, set()).discard(request)
        self.carry_out(self.policy.left(request, self.now))

    def serve(self, model: str) -> None:
        self.processes[model] = "serving"
        self.served.add(model)
        self.turn[model] = self.those_waiting(model)
        self.begin_turn(model, set())
        self.carry_out(self.policy.ready(model, self.now))

    def die(self, model: str, *, fails: bool) -> None:
        for kept in (self.leased, self.asked, self.taken):
            kept.discard(model)
        self.cut |= {request: wanted for request, wanted in self.running.items() if wanted == model}
        self.running = {request: wanted for request, wanted in self.running.items() if wanted != model}
        self.forget_turns(model)
        if model in self.draining:
            # One that was to end anyway is not replaced.
            self.end(model)
        elif fails:
            self.forget(model)
            self.failed.add(model)
            self.carry_out(self.policy.failed(model, self.now))
        else:
            self.processes[model] = "loading"
            actions = self.policy.restarting(model, self.now)
            self.launch(model)
            self.carry_out(actions)

    def forget(self, model: str) -> None:
        del self.processes[model], self.books[model], self.may[model], self.kept[model]
        for told in (self.heard, self.mail, self.asks, self.large):
            told.pop(model, None)
        self.trims.discard(model)
        for kept in (self.draining, self.leased, self.asked, self.taken, self.served):
            kept.discard(model)

    def end(self, model: str, *, retry_s: float = 0.0) -> None:
        self.forget(model)
        self.carry_out(self.policy.gone(model, self.now, retry_s=retry_s))

    def runs_out_of_memory(self, model: str) -> None:
        """It dies while it loads, and is tried again later."""
        self.end(model, retry_s=self.now + 2.0)

    def keep(self, model: str) -> None:
        self.processes[model] = "serving"
        self.leased.add(model)
        self.forget_turns(model)
        self.carry_out(self.policy.kept(model, self.now))

    def can_be_kept(self) -> list[str]:
        return [
            model
            for model in self.those("ending")
            if self.reasons[model] in ("evicted", "idle", "pressure", "leased")
        ]

    def lease(self, model: str) -> None:
        self.leased.add(model)
        self.carry_out(self.policy.lease(model, self.now, held=True))

    def can_be_leased(self) -> list[str]:
        return [model for model in self.those("serving") if model not in self.taken | self.asked]

    def give_back(self, model: str) -> None:
        self.leased.discard(model)
        self.forget_turns(model)
        self.turn[model] = self.those_waiting(model)
        self.begin_turn(model, set())
        if self.processes[model] == "serving":
            self.carry_out(self.policy.lease(model, self.now, held=False))

    def want_machine(self, *, unload: bool) -> None:
        self.machine[self.next] = unload
        self.next += 1
        self.carry_out(self.policy.lease_asked(self.next - 1, self.now, unload=unload))

    def take(self, model: str) -> None:
        self.asked.discard(model)
        self.taken.add(model)
        self.carry_out(self.policy.taken(model, self.now))

    def can_be_taken(self) -> list[str]:
        return sorted(model for model in self.asked - self.leased if self.processes.get(model) == "serving")

    def give_machine_back(self, lease: int) -> None:
        del self.machine[lease]
        if self.granted == lease:
            self.granted = None
        for model in self.processes:
            self.forget_turns(model)
        self.carry_out(self.policy.lease_ended(lease, self.now))

    def grow(self, model: str, more: int) -> None:
        self.kept[model] = (more, more // 2)
        self.grown()
        self.read(model)

    def read(self, model: str) -> None:
        """A reading of its memory comes."""
        cost = BY_ID[model].cost_bytes
        ask = self.asks.get(model)
        self.books[model] = self.holds(model)
        self.grown()
        self.carry_out(
            self.policy.measured(
                model,
                self.holds(model),
                self.now,
                wanted_bytes=cost + ask.more if ask else 0,
                goes_on=ask is not None and ask.goes_on,
                stalled=ask is not None and ask.stalled and self.count(self.running, model) == 1,
                least_bytes=cost + self.kept[model][1],
            )
        )

    def can_want_more(self) -> list[int]:
        """Requests whose row may need more: one at a time runs beyond what its model costs."""
        return sorted(
            request
            for request, model in self.running.items()
            if self.processes.get(model) == "serving" and not (model in self.asks or model in self.large)
        )

    def can_grow(self) -> list[int]:
        """Requests whose row runs and may come to need more."""
        return sorted(
            request
            for request, model in self.running.items()
            if self.processes.get(model) == "serving"
            and model not in self.asks
            and self.large.get(model, (request, 0))[0] == request
        )

    def can_stall(self) -> list[str]:
        return sorted(model for model, ask in self.asks.items() if ask.goes_on and not ask.stalled)

    def stall(self, model: str) -> None:
        """The row has come to its end before it was given more. What was computed is kept, until it is
        trimmed."""
        self.asks[model].stalled = True
        _, row = self.large.pop(model, (0, 0))
        kept, lasting = self.kept[model]
        self.kept[model] = (max(kept, row), lasting)
        self.read(model)
        self.pass_on_refused(model)

    def want_more(self, request: int, more: int, *, goes_on: bool = False) -> None:
        """The request's row, which waits, needs so much more than its model costs; or more than it has, if it
        runs."""
        model = self.running[request]
        if goes_on:
            more += self.large.get(model, (request, 0))[1]
        self.asks[model] = Ask(request, more, goes_on)
        self.look(model)
        self.read(model)
        self.pass_on_refused(model)

    def look(self, model: str) -> None:
        """The worker begins its row if it may; see `pass_on_refused` if it never will."""
        ask = self.asks.get(model)
        if ask is not None and BY_ID[model].cost_bytes + ask.more <= self.may[model]:
            del self.asks[model]
            self.large[model] = (ask.request, ask.more)
            self.answered["grown" if ask.goes_on else "given"] += 1

    def pass_on_refused(self, model: str) -> None:
        share, ask = self.heard.get(model), self.asks.get(model)
        if share is None or ask is None:
            return
        if BY_ID[model].cost_bytes + ask.more > share.most_bytes:
            self.answered["denied"] += 1
            self.finish(ask.request)
        elif ask.goes_on and ask.stalled and share.cut:
            self.cuts += 1
            self.finish(ask.request)
        elif share.back and not ask.goes_on:
            self.answered["back"] += 1
            self.finish(ask.request)
            self.arrives(BY_ID[model], by_hand=False, again=True, wait_s=0.0)

    def deliver(self, model: str) -> None:
        """The worker hears what it may take, and we that it did."""
        share = self.heard[model] = self.mail[model][0]
        self.may[model] = share.bytes
        self.look(model)
        self.read(model)
        self.carry_out(self.policy.limited(model, share.bytes, self.now))
        # What is told next goes its way now, and is what was told last.
        self.mail[model] = [later for later in self.mail[model][1:] if later != share]
        if not self.mail[model]:
            del self.mail[model]
        self.pass_on_refused(model)

    def trim(self, model: str) -> None:
        self.trims.discard(model)
        self.kept[model] = (self.kept[model][1],) * 2
        self.read(model)
        self.carry_out(self.policy.trimmed(model, self.now))

    def press(self, *, unload: bool) -> None:
        self.pressed = unload
        self.carry_out(self.policy.press(self.now, trim=True, unload=unload))

    def change_budget(self, budget: int) -> None:
        self.budget = budget
        self.grown()
        self.carry_out(self.policy.allow(budget, MOST_WAITING, self.now))

    def unload(self, model: str) -> None:
        self.failed.discard(model)
        self.carry_out(self.policy.unload(model, self.now))

    def pass_time(self, wait_s: float) -> None:
        self.now += wait_s
        self.carry_out(self.policy.tick(self.now))
        later = self.policy.next_tick(self.now)
        assert later is None or later > self.now, "a timer that fires for ever"

    def shut_down(self) -> None:
        self.closing = True
        self.carry_out(self.policy.shutdown(self.now))

    # What must always hold.

    def check(self) -> None:
        for model in BY_ID:
            assert self.policy.in_flight(model) == self.held(model)
            assert self.policy.queued(model) == self.count(self.waiting, model)
        assert sum(waiting.count for waiting in self.policy.waiting(self.now)) == len(self.waiting)
        assert self.policy.booked_bytes == sum(self.books.values())
        self.check_memory()
        assert all(self.policy.share_of(model) >= BY_ID[model].cost_bytes for model in self.processes)
        if self.machine:
            return
        lacking = set(self.waiting.values()) - self.processes.keys()
        for model in self.those("serving"):
            busy = model in self.leased | self.draining or self.held(model) or self.policy_asked()
            assert busy or lacking or not self.those_waiting(model), (
                f"{model} is idle, requests wait for it, and nobody wants its room"
            )

    def policy_asked(self) -> bool:
        """Whether somebody is known to ask for more."""
        return any(known.wanted_bytes for known in self.known())

    def known(self) -> list[Resident]:
        """What the policy knows of the models that have a process."""
        return [known for model in self.processes if (known := self.policy.model(model)) is not None]

    def answer_everybody(self) -> None:
        """When every process gets on, every row that runs ends and every lease is given back, all are
        answered: nobody waits for one who waits for him."""
        if self.pressed:
            self.press(unload=False)
        for lease in list(self.machine):
            for _ in range(self.enough_steps):
                if self.granted == lease or self.closing:
                    break
                self.get_on()
            assert self.granted == lease or self.closing, "the machine is wanted for ever"
            self.give_machine_back(lease)
        for _ in range(self.enough_steps):
            if not (self.waiting or self.asks):
                break
            self.get_on()
        assert not self.waiting, "somebody waits for ever"
        assert not self.asks, "a row waits for ever"
        self.check()

    @property
    def enough_steps(self) -> int:
        return 20 * (len(self.waiting) + len(self.running) + len(self.cut) + len(MODELS))

    def get_on(self) -> None:
        """Rows that run end, or come to the end of what they may have; processes and leases get on, and
        whatever is on its way arrives."""
        for model in sorted(self.leased):
            self.give_back(model)
        asking = {ask.request for ask in self.asks.values()}
        for request in sorted((self.running | self.cut).keys() - asking):
            self.finish(request)
        for model in self.those("ending"):
            self.end(model)
        for model in self.those("loading"):
            self.serve(model)
        while can := self.can_be_taken():
            self.take(can[0])
        for model in sorted(self.trims & self.processes.keys()):
            self.trim(model)
        for model in sorted(self.processes):
            if model in self.processes:
                self.read(model)
        for model in sorted(self.mail):
            while model in self.mail:
                self.deliver(model)
        for model in self.can_stall():
            if model in self.asks:
                self.stall(model)
        self.pass_time(1.0)

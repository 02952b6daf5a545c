"""What may happen to the policy, and what must hold whatever did. Whoever drives a world chooses what happens
next."""

from supervisor.workers.actions import Action, Admit, Refuse, Traits, Why
from tests.unit.workers.residency_watch import BY_ID, MODELS, MOST_WAITING, Ask, WatchedPolicy

__all__ = ["BY_ID", "MODELS", "World"]


class World(WatchedPolicy):
    """The policy and everything around it."""

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

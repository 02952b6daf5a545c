"""Who has a worker: decisions only. Events go in, actions come out; no clocks, sockets or tasks.

Every event carries its time in seconds on one monotonic clock. A model is in one of these phases:

| phase    | its process                             | counts in the budget | may be made to leave |
| -------- | --------------------------------------- | -------------------- | -------------------- |
| absent   | none; requests for it may wait for room | no                   |                      |
| starting | loads, or died and is being replaced    | yes                  | never                |
| ready    | serves                                  | yes                  | when nobody uses it  |
| stopping | told to end, not yet reaped             | yes                  | is already           |
| failed   | none, and none until asked by hand      | no                   |                      |

A *turn* of a model is what it is given between two moments of rest. When another model waits for its room
(see `room`), the turn that runs takes in what comes within `hold` of its beginning; what comes later waits.
At rest the model leaves, unless it is held: it was used less than `hold` ago and while somebody waited, and
has begun less than two further turns since. So a waiting model waits for three turns at most, however busy
the other one is, and turns come in batches, not one request at a time. What waited for a model when it became
ready is served within that turn even if it has to yield at once.

A lease of the whole machine stops the admission and every load. It is granted when what runs has finished,
what loads has loaded, what leaves has left, and each worker has been leased (or unloaded, if that was asked).

A worker may take no more than it was told (see `sharing`). For a row that needs more, or is going to need it
soon, it *asks*, by a reading of its memory, until it is told more, or that there will never be so much, or to
give the row back.
"""

import itertools
from collections.abc import Iterator

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    GiveBack,
    Refuse,
    Share,
    Spawn,
    Traits,
    Trim,
    Why,
)
from supervisor.workers.resident import Resident
from supervisor.workers.residents import Residents
from supervisor.workers.room import Plan, plan
from supervisor.workers.sharing import share_out


class Residency(Residents):
    """The policy over all models, whose workers may take `budget_bytes` together.

    At most `max_waiting` requests wait, over all models.
    """

    def __init__(self, budget_bytes: int, *, max_waiting: int = 1024) -> None:
        super().__init__(budget_bytes, max_waiting=max_waiting)
        self._requests: dict[int, Resident] = {}
        self._closing = False
        self._reserved_bytes = 0
        self._tight = False
        self._going_on = False
        self.unshared = False
        """Whether `share_out` may have something new to say."""

    # What happens to requests.

    def arrived(
        self, request: int, traits: Traits, now: float, *, by_hand: bool = False, again: bool = False
    ) -> list[Action]:
        """A request for the model. `by_hand` asks for a load: it also wakes a failed model.

        `by_hand` requests, and those that come `again` after their worker died, are not counted against
        the queue's length.
        """
        model = self._models.get(traits.id)
        if model is None:
            model = self._models[traits.id] = Resident(traits)
        model.traits = traits
        if self._closing:
            return self._refuse_new(request, model, Why.STOPPING)
        if model.phase == "failed":
            if not by_hand:
                return self._refuse_new(request, model, Why.FAILED)
            model.phase = "absent"
        if by_hand:
            model.retry_s = now
        elif not again and len(model.waiting) + len(model.admitted) >= traits.limit:
            return self._refuse_new(request, model, Why.QUEUE_FULL)
        if self.admit_at_once(request, traits.id, now):
            return [Admit(request, traits.id)]
        if not (by_hand or again) and self.waiting_count() >= self._max_waiting:
            return self._refuse_new(request, model, Why.CROWDED)
        self._requests[request] = model
        model.waiting[request] = now
        model.deserted_s = None
        return self._settle(now)

    def admit_at_once(self, request: int, model_id: str, now: float) -> bool:
        """As `arrived`, for a model whose traits have not changed, if that would admit the request and do
        nothing else; whether it does."""
        model = self._models.get(model_id)
        if model is None or self._closing or self._leases or not model.is_open:
            return False
        self._requests[request] = model
        model.enter(request, now)
        return True

    def left(self, request: int, now: float) -> list[Action]:
        """The request is over: answered, failed, or abandoned while it waited."""
        model = self._requests.pop(request, None)
        if model is None:
            return []
        if request in model.admitted:
            model.admitted.remove(request)
            model.used_s = now
        else:
            if request in itertools.islice(model.waiting, model.turn):
                model.turn -= 1
            del model.waiting[request]
            if model.phase == "starting" and not model.waiting:
                model.deserted_s = now
        if self._leases or model.phase == "absent":
            return self._settle(now)
        booked_bytes = 0
        for other in self._models.values():
            if (
                other.waiting
                or other.leaving
                or other.retired
                or other.wanted_bytes
                or other.deserted_s is not None
            ):
                return self._settle(now)
            booked_bytes += other.booked_bytes
        if booked_bytes > self._budget_bytes:
            return self._settle(now)
        # The usual case, once per request: nobody waits for anything.
        if self._pressed and model.at_rest and model.movable:
            return [model.stop("pressure")]
        return []

    # What happens to workers.

    def ready(self, model_id: str, now: float) -> list[Action]:
        """The model's worker serves from now on."""
        model = self._models[model_id]
        if model.phase != "starting":
            return []
        model.phase = "ready"
        model.served = True
        model.deserted_s = None
        model.begin_turn(now)
        model.used_s = now
        first: list[Action] = [Drain(model_id)] if model.leaving else []
        return first + self._settle(now)

    def restarting(self, model_id: str, now: float) -> list[Action]:
        """The worker died and is being replaced."""
        model = self._models[model_id]
        model.phase = "starting"
        model.leased = False
        model.ours = "no"
        model.turn = 0
        model.launch()
        return self._settle(now)

    def failed(self, model_id: str, now: float) -> list[Action]:
        """The worker died and is not replaced."""
        model = self._models[model_id]
        model.end("failed")
        return self._refuse_waiting(model, Why.FAILED) + self._settle(now)

    def gone(
        self, model_id: str, now: float, *, retry_s: float = 0.0, traits: Traits | None = None
    ) -> list[Action]:
        """The worker's process is reaped: its room is free only now. It is not loaded before `retry_s`, and
        counts for what `traits` say if that is known better now."""
        model = self._models.get(model_id)
        if model is not None:
            model.end("absent")
            model.traits = traits or model.traits
            model.retry_s = max(model.retry_s, retry_s)
        return self._settle(now)

    def kept(self, model_id: str, now: float) -> list[Action]:
        """A `Stop` was not carried out: somebody leased the worker on its own socket."""
        model = self._models[model_id]
        model.phase = "ready"
        model.leased = True
        model.leaving = model.leaving or self._closing
        return self._settle(now)

    def lease(self, model_id: str, now: float, *, held: bool) -> list[Action]:
        """Somebody got exclusive use of the worker, or gave it back."""
        model = self._models[model_id]
        model.leased = held and model.phase == "ready"
        if held:
            model.turn = 0
        else:
            model.begin_turn(now)
        model.used_s = max(model.used_s, now)
        return self._settle(now)

    def measured(
        self,
        model_id: str,
        footprint_bytes: int,
        now: float,
        *,
        wanted_bytes: int = 0,
        goes_on: bool = False,
        stalled: bool = False,
        least_bytes: int = 0,
    ) -> list[Action]:
        """What the worker really holds, or has promised to. It never counts for less than its cost: it may
        need that again.

        `least_bytes` it holds without rows and what it keeps of them; `wanted_bytes` is the share that it
        asks for, 0 if it needs none. `goes_on` tells whether that is for a request that has begun, `stalled`
        whether nothing runs until it has that.
        """
        model = self._models.get(model_id)
        if model is None or not model.resident:
            return []
        before, asked = model.booked_bytes, (model.wanted_bytes, model.goes_on, model.stalled)
        model.booked_bytes = max(model.cost_bytes, footprint_bytes)
        model.least_bytes = max(model.cost_bytes, least_bytes)
        model.ask(wanted_bytes, now, goes_on=goes_on, stalled=stalled)
        asks = (model.wanted_bytes, model.goes_on, model.stalled)
        if model.booked_bytes == before and asks == asked:
            return []
        self.unshared = True
        news = asks != asked or self._over_budget or self._tight or model.booked_bytes < before
        return self._settle(now) if news else []

    def limited(self, model_id: str, share_bytes: int, now: float) -> list[Action]:
        """The worker has said that it takes no more than this, and was told nothing else meanwhile."""
        model = self._models.get(model_id)
        if model is None or not model.resident or model.told_bytes != share_bytes:
            return []
        if model.share_bytes == share_bytes:
            return []
        model.share_bytes = share_bytes
        return self._settle(now)

    def trimmed(self, model_id: str, now: float) -> list[Action]:
        """A `Trim` was carried out, and what the worker holds then was measured."""
        model = self._models.get(model_id)
        if model is None or not model.trimmed:
            return []
        model.lean = True
        return self._settle(now)

    # What people and the machine want.

    def unload(self, model_id: str, now: float) -> list[Action]:
        """Unloading was asked for: the worker ends when it has finished what it was given.

        Of a model that loads, that includes what waits for it.
        """
        model = self._models.get(model_id)
        if model is None:
            return []
        match model.phase:
            case "failed":
                model.phase = "absent"
            case "starting" if not model.waiting:
                return [model.stop("unloaded"), *self._settle(now)]
            case "starting":
                model.leaving = True
            case "ready" if not model.leaving:
                model.leaving = True
                return [Drain(model_id), *self._settle(now)]
            case "stopping":
                model.leaving = True  # in case that it is kept
            case _:
                pass
        return self._settle(now)

    def retire(self, model_id: str, now: float) -> list[Action]:
        """The model is not configured any more: it ends when nobody wants it."""
        model = self._models.get(model_id)
        if model is not None:
            model.retired = True
        return self._settle(now)

    def change(self, traits: Traits, now: float) -> list[Action]:
        """The model is configured differently. What it costs counts from its next load on."""
        model = self._models.get(traits.id)
        if model is not None:
            model.traits = traits
            model.retired = False
        return self._settle(now)

    def forget_failure(self, model_id: str, now: float) -> list[Action]:
        """Something about the model has changed, so that a load may succeed now."""
        model = self._models.get(model_id)
        if model is None:
            return []
        model.retry_s = now
        if model.phase == "failed":
            model.phase = "absent"
        return self._settle(now)

    def allow(self, budget_bytes: int, max_waiting: int, now: float) -> list[Action]:
        """The limits have changed. Of residents that are too many now, only idle ones leave."""
        self._budget_bytes = budget_bytes
        self._max_waiting = max_waiting
        return self._settle(now)

    def press(self, now: float, *, trim: bool, unload: bool) -> list[Action]:
        """The machine runs short of memory (or does not any more): idle workers shall give back what they
        can, or leave; then loads wait until it is over."""
        self._pressed = unload
        actions: list[Action] = []
        for model in self._models.values():
            if unload and model.at_rest and model.movable and not model.waiting:
                actions.append(model.stop("pressure"))
            elif trim and model.at_rest and not model.trimmed:
                model.trimmed = True
                actions.append(Trim(model.traits.id))
        return actions + self._settle(now)

    def lease_asked(self, lease: int, now: float, *, unload: bool) -> list[Action]:
        """Somebody wants the machine for himself, with models at rest or without any."""
        self._leases.add(lease, unload=unload)
        return self._settle(now)

    def taken(self, model_id: str, now: float) -> list[Action]:
        """A `Lease` was carried out."""
        model = self._models.get(model_id)
        if model is not None and model.ours == "asked":
            model.ours = "held"
            model.leased = True
        return self._settle(now)

    def lease_ended(self, lease: int, now: float) -> list[Action]:
        """Whoever asked for the machine has done, or does not want it any more."""
        return self._leases.remove(lease, self._models.values(), now) + self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed: models that nobody used for long leave, and so do loads that nobody waits for."""
        actions: list[Action] = [
            model.stop("idle")
            for model in self._models.values()
            if (due := model.expires_s) is not None and due <= now
        ]
        return actions + self._settle(now)

    def shutdown(self, now: float) -> list[Action]:
        """Everything ends: whoever waits is refused, workers stop as soon as they have finished."""
        self._closing = True
        actions: list[Action] = []
        for model in self._models.values():
            actions += self._refuse_waiting(model, Why.STOPPING)
            if model.phase == "starting":
                actions.append(model.stop("stopping"))
            elif model.phase == "ready" and not model.leaving:
                model.leaving = True
                actions.append(Drain(model.traits.id))
        return actions + self._settle(now)

    # What workers are to be told.

    def share_out(self) -> dict[str, Share]:
        """What to tell the serving workers. Report `limited` when one has heard what it was told last."""
        self.unshared = False
        return share_out(list(self.residents()), self._budget_bytes, self._reserved_bytes, tight=self._tight)

    # How it is decided.

    def _settle(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for model in self._models.values():
            if self._leases and not model.admitted:
                # Nobody is let in: who waits keeps no worker from its rest, nor from leaving.
                model.turn = 0
            if model.leaving and model.ours == "held" and model.unused:
                # Whoever has the machine wants it to rest, and it need not be there for that.
                model.ours = "no"
                model.leased = False
                actions.append(GiveBack(model.traits.id))
            if model.leaving and (
                model.at_rest or (self._closing and model.phase == "ready" and model.unused)
            ):
                actions.append(model.stop("stopping" if self._closing else "unloaded"))
            elif model.retired and model.at_rest and not model.waiting:
                actions.append(model.stop("removed"))
            elif model.abandoned_at_s is not None and model.abandoned_at_s <= now:
                actions.append(model.stop("abandoned"))
            elif self._pressed and model.at_rest and model.movable and not model.waiting:
                actions.append(model.stop("pressure"))
        actions += self._make_room(now)
        if self._leases and not self._closing:
            actions += self._leases.bring_to_rest(self._models.values(), waits=self._going_on)
        if not self._leases:
            for model in self._models.values():
                actions += [Admit(request, model.traits.id) for request in model.let_in(now)]
        done = [
            model_id
            for model_id, model in self._models.items()
            if model.phase == "absent" and not model.waiting and not model.admitted and model.retry_s <= now
        ]
        for model_id in done:
            del self._models[model_id]
        return actions

    def _make_room(self, now: float) -> Iterator[Action]:
        made = self._plan(now)
        if made.going_on and self._leases:
            # What has begun ends first, and needs what those hold that are leased for it already.
            let_go = list(self._leases.let_go(self._models.values()))
            yield from let_go
            made = self._plan(now) if let_go else made
        self._going_on = made.going_on
        self._reserved_bytes, self._tight, self.unshared = made.reserved_bytes, made.tight, True
        for model, why in made.refuse:
            yield from self._refuse_waiting(model, why)
        for model in made.spawn:
            model.begin()
            if model.traits.id == self._evicted:
                self._evicted = None
            yield Spawn(model.traits.id)
        for model in made.trim:
            model.trimmed = True
            yield Trim(model.traits.id)
        for model in made.evict:
            self._evicted = model.traits.id
            yield model.stop("evicted")
        if not made.lacking:
            for model in self._models.values():
                model.further = 0
            return
        for model in self._models.values():
            # Nobody came back for it yet, and now its room is wanted.
            if model.abandoned_at_s is not None:
                yield model.stop("abandoned")

    def _plan(self, now: float) -> Plan:
        given_away = bool(self._leases) or self._closing
        loads = not (given_away or self._pressed)
        return plan(self._models.values(), self._budget_bytes, now, loads=loads, returns=given_away)

    def _refuse_new(self, request: int, model: Resident, why: Why) -> list[Action]:
        if model.phase == "absent" and not model.waiting and not model.admitted:
            del self._models[model.traits.id]
        return [Refuse(request, model.traits.id, why)]

    def _refuse_waiting(self, model: Resident, why: Why) -> list[Action]:
        refused: list[Action] = [Refuse(request, model.traits.id, why) for request in model.waiting]
        for request in model.waiting:
            del self._requests[request]
        model.waiting.clear()
        model.turn = 0
        return refused

"""Who has a worker: decisions only. Events go in, actions come out; no clocks, sockets or tasks.

Every event carries its time in seconds on one monotonic clock. A model is in one of these phases:

| phase    | its process                             | takes a place | may be evicted      |
| -------- | --------------------------------------- | ------------- | ------------------- |
| absent   | none; requests for it may wait for room | no            |                     |
| starting | loads, or died and is being replaced    | yes           | never               |
| ready    | serves                                  | yes           | when nobody uses it |
| stopping | told to end, not yet reaped             | yes           | is already          |
| failed   | none, and none until asked by hand      | no            |                     |

When a model waits for room and no resident one is idle, the resident whose turn has lasted longest
*yields*: what it has admitted finishes, what comes new waits, and then its place is free. So a waiting
model waits for the answers in flight and no longer. What waited for a model when it became ready is
served within that turn even if it has to yield at once: turns come in batches, not one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    Refuse,
    Spawn,
    Stop,
    StopReason,
    Traits,
    Waiting,
    WaitReason,
    Why,
)

Phase = Literal["absent", "starting", "ready", "stopping", "failed"]


@dataclass(slots=True)
class _Model:
    traits: Traits
    phase: Phase = "absent"
    waiting: dict[int, float] = field(default_factory=dict)
    """Request -> when it came, first in first out."""
    admitted: set[int] = field(default_factory=set)
    turn: int = 0
    """Of those that wait, how many still belong to the turn that it has."""
    turn_s: float = 0.0
    used_s: float = 0.0
    """When it became ready or last finished a request."""
    yielding: bool = False
    leaving: bool = False
    """Unloading was asked for."""
    leased: bool = False

    @property
    def resident(self) -> bool:
        return self.phase in ("starting", "ready", "stopping")

    @property
    def unused(self) -> bool:
        return not self.admitted and not self.turn

    @property
    def at_rest(self) -> bool:
        """Ready, and nothing in hand. Whoever waits does so because it yields."""
        return self.phase == "ready" and self.unused and not self.leased

    @property
    def movable(self) -> bool:
        return self.phase == "ready" and not (self.traits.pinned or self.leased or self.leaving)


class Residency:
    """The policy over all models, with room for `max_resident` of them."""

    def __init__(self, max_resident: int) -> None:
        self._max_resident = max_resident
        self._models: dict[str, _Model] = {}
        self._requests: dict[int, _Model] = {}
        self._closing = False

    # What happens.

    def arrived(
        self, request: int, traits: Traits, now: float, *, by_hand: bool = False, again: bool = False
    ) -> list[Action]:
        """A request for the model. `by_hand` asks for a load: it also wakes a failed model.

        `by_hand` requests, and those that come `again` after their worker died, are not counted against
        the queue's length.
        """
        model = self._models.get(traits.id)
        if model is None:
            model = self._models[traits.id] = _Model(traits)
        model.traits = traits
        if self._closing:
            return self._refuse_new(request, model, Why.STOPPING)
        if model.phase == "failed":
            if not by_hand:
                return self._refuse_new(request, model, Why.FAILED)
            model.phase = "absent"
        if not (by_hand or again) and len(model.waiting) + len(model.admitted) >= traits.limit:
            return self._refuse_new(request, model, Why.QUEUE_FULL)
        self._requests[request] = model
        if (
            model.phase == "ready"
            and not (model.waiting or model.yielding or model.leaving or model.leased)
            and len(model.admitted) < traits.window
        ):
            model.admitted.add(request)
            return [Admit(request, traits.id)]
        model.waiting[request] = now
        return self._settle()

    def left(self, request: int, now: float) -> list[Action]:
        """The request is over: answered, failed, or abandoned while it waited."""
        model = self._requests.pop(request, None)
        if model is None:
            return []
        if request in model.admitted:
            model.admitted.remove(request)
            model.used_s = now
        else:
            del model.waiting[request]
            model.turn = min(model.turn, len(model.waiting))
        # The usual case, once per request: nobody waits for anything.
        if not any(other.waiting or other.leaving for other in self._models.values()):
            return self._settle() if model.phase == "absent" else []
        return self._settle()

    def ready(self, model_id: str, now: float) -> list[Action]:
        """The model's worker serves from now on."""
        model = self._models[model_id]
        if model.phase != "starting":
            return []
        model.phase = "ready"
        model.turn = len(model.waiting)
        model.turn_s = model.used_s = now
        first: list[Action] = [Drain(model_id)] if model.leaving else []
        return first + self._settle()

    def restarting(self, model_id: str) -> list[Action]:
        """The worker died and is being replaced."""
        model = self._models[model_id]
        model.phase = "starting"
        model.leased = False
        model.turn = 0
        return self._settle()

    def failed(self, model_id: str) -> list[Action]:
        """The worker died and is not replaced."""
        model = self._models[model_id]
        self._end(model, "failed")
        return self._refuse_waiting(model, Why.FAILED) + self._settle()

    def gone(self, model_id: str) -> list[Action]:
        """The worker's process is reaped: its place is free only now."""
        model = self._models.get(model_id)
        if model is not None:
            self._end(model, "absent")
        return self._settle()

    def kept(self, model_id: str) -> list[Action]:
        """A `Stop` was not carried out: somebody leased the worker on its own socket."""
        model = self._models[model_id]
        model.phase = "ready"
        model.leased = True
        model.leaving = model.leaving or self._closing
        return self._settle()

    def lease(self, model_id: str, *, held: bool) -> list[Action]:
        """Somebody got exclusive use of the worker, or gave it back."""
        model = self._models[model_id]
        model.leased = held and model.phase == "ready"
        model.turn = 0 if held else len(model.waiting)
        return self._settle()

    def unload(self, model_id: str) -> list[Action]:
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
                return [self._stop(model, "unloaded"), *self._settle()]
            case "starting":
                model.leaving = True
            case "ready" if not model.leaving:
                model.leaving = True
                return [Drain(model_id), *self._settle()]
            case "stopping":
                model.leaving = True  # in case that it is kept
            case _:
                pass
        return self._settle()

    def forget_failure(self, model_id: str) -> None:
        """Something about the model has changed, so that a load may succeed now."""
        model = self._models.get(model_id)
        if model is not None and model.phase == "failed":
            model.phase = "absent"
            self._settle()

    def tick(self, now: float) -> list[Action]:
        """Time has passed: models that nobody used for long leave."""
        actions: list[Action] = [
            self._stop(model, "idle")
            for model in self._models.values()
            if self._expires_s(model) is not None and now - model.used_s >= model.traits.idle_unload_s
        ]
        return actions + self._settle()

    def shutdown(self) -> list[Action]:
        """Everything ends: whoever waits is refused, workers stop as soon as they have finished."""
        self._closing = True
        actions: list[Action] = []
        for model in self._models.values():
            actions += self._refuse_waiting(model, Why.STOPPING)
            if model.phase == "starting":
                actions.append(self._stop(model, "stopping"))
            elif model.phase == "ready" and not model.leaving:
                model.leaving = True
                actions.append(Drain(model.traits.id))
        return actions + self._settle()

    # What can be asked.

    def next_tick(self) -> float | None:
        """When `tick` may have something to do, if nothing happens until then."""
        times = [time for model in self._models.values() if (time := self._expires_s(model)) is not None]
        return min(times, default=None)

    def phase(self, model_id: str) -> Phase:
        model = self._models.get(model_id)
        return model.phase if model else "absent"

    def in_flight(self, model_id: str) -> int:
        model = self._models.get(model_id)
        return len(model.admitted) if model else 0

    def queued(self, model_id: str) -> int:
        model = self._models.get(model_id)
        return len(model.waiting) if model else 0

    def used_s(self, model_id: str) -> float | None:
        """When the model was last used; None while it is in use or not ready."""
        model = self._models.get(model_id)
        return model.used_s if model and model.phase == "ready" and not model.admitted else None

    def waiting(self, now: float) -> list[Waiting]:
        """Who waits for what, longest first."""
        found = [
            Waiting(
                id=model.traits.id,
                count=len(model.waiting),
                oldest_s=round(now - _oldest(model), 3),
                reason=_reason(model),
            )
            for model in self._models.values()
            if model.waiting
        ]
        return sorted(found, key=lambda waiting: -waiting.oldest_s)

    # How it is decided.

    def _settle(self) -> list[Action]:
        actions: list[Action] = [
            self._stop(model, "stopping" if self._closing else "unloaded")
            for model in self._models.values()
            if model.leaving
            and (model.at_rest or (self._closing and model.phase == "ready" and model.unused))
        ]
        actions += self._make_room()
        for model in self._models.values():
            actions += self._admit(model)
        done = [
            model_id
            for model_id, model in self._models.items()
            if model.phase == "absent" and not model.waiting and not model.admitted
        ]
        for model_id in done:
            del self._models[model_id]
        return actions

    def _make_room(self) -> Iterator[Action]:
        for model in self._models.values():
            model.yielding = False
        wanting = sorted(
            (model for model in self._models.values() if model.phase == "absent" and model.waiting),
            key=_oldest,
        )
        if not wanting:
            return
        free = max(0, self._max_resident - sum(model.resident for model in self._models.values()))
        for model in wanting[:free]:
            model.phase = "starting"
            yield Spawn(model.traits.id)
        lacking = wanting[free:]
        if not lacking:
            return
        residents = [model for model in self._models.values() if model.resident]
        if sum(model.traits.pinned and not model.leaving for model in residents) >= self._max_resident:
            for model in lacking:
                yield from self._refuse_waiting(model, Why.NO_PLACE)
            return
        coming = sum(model.phase == "stopping" or model.leaving for model in residents)
        needed = max(0, len(lacking) - coming)
        movable = [model for model in residents if model.movable]
        idle = sorted((model for model in movable if model.at_rest), key=_rest_order)[:needed]
        for model in idle:
            yield self._stop(model, "evicted")
        busy = sorted((model for model in movable if not model.at_rest), key=lambda model: model.turn_s)
        for model in busy[: needed - len(idle)]:
            model.yielding = True

    def _admit(self, model: _Model) -> Iterator[Action]:
        if model.phase != "ready" or model.leased:
            return
        while model.waiting and len(model.admitted) < model.traits.window:
            if (model.yielding or model.leaving) and not model.turn:
                break
            request = next(iter(model.waiting))
            del model.waiting[request]
            model.admitted.add(request)
            model.turn = max(0, model.turn - 1)
            yield Admit(request, model.traits.id)

    def _stop(self, model: _Model, reason: StopReason) -> Stop:
        model.phase = "stopping"
        model.turn = 0
        return Stop(model.traits.id, reason)

    @staticmethod
    def _end(model: _Model, phase: Phase) -> None:
        model.phase = phase
        model.leaving = model.leased = model.yielding = False
        model.turn = 0

    def _refuse_new(self, request: int, model: _Model, why: Why) -> list[Action]:
        if model.phase == "absent" and not model.waiting and not model.admitted:
            del self._models[model.traits.id]
        return [Refuse(request, model.traits.id, why)]

    def _refuse_waiting(self, model: _Model, why: Why) -> list[Action]:
        refused: list[Action] = [Refuse(request, model.traits.id, why) for request in model.waiting]
        for request in model.waiting:
            del self._requests[request]
        model.waiting.clear()
        model.turn = 0
        return refused

    @staticmethod
    def _expires_s(model: _Model) -> float | None:
        """When it will have been idle for too long; None if it is not idle or may stay for ever."""
        if model.at_rest and model.movable and not model.waiting:
            return model.used_s + model.traits.idle_unload_s
        return None


def _oldest(model: _Model) -> float:
    return next(iter(model.waiting.values()))


def _rest_order(model: _Model) -> tuple[bool, float]:
    """Least recently used first; before all others those that nobody waits for."""
    return bool(model.waiting), model.used_s


def _reason(model: _Model) -> WaitReason:
    if model.phase == "absent":
        return "room"
    if model.phase == "starting":
        return "loading"
    if model.phase == "stopping" or model.leaving:
        return "unloading"
    if model.leased:
        return "leased"
    return "turn" if model.yielding else "busy"

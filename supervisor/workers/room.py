"""Who gets room, and who leaves for it.

Models that wait for room are looked at one after the other: those that were passed over too often, then by
priority, then by who waits longest. One that fits loads. For one that does not, the least recently used
idle models are chosen to leave, no more of them than it takes; if they are not enough, those that are
held, then busy ones, the oldest turn first. All of the chosen *yield* until every one of them rests, and
then they leave together: nobody leaves for a room that is not there yet. What a model waits for is
reserved; a later one may load beside it only in what is left over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.workers.actions import Why
from supervisor.workers.resident import Resident

PASSED: Final = 2
"""So often may a model that came later, but with a higher priority, get room before another."""


@dataclass(slots=True)
class Plan:
    """What is to be done at once. Who yields and who waits behind whom is written to the models."""

    spawn: list[Resident] = field(default_factory=list)
    evict: list[Resident] = field(default_factory=list)
    refuse: list[tuple[Resident, Why]] = field(default_factory=list)
    lacking: bool = False
    """Whether a model waits for others to leave."""


def plan(models: Iterable[Resident], budget_bytes: int, now: float, *, loads: bool) -> Plan:
    """Share out the budget. Without `loads` nothing is started, and nobody leaves for it."""
    made = Plan()
    residents: list[Resident] = []
    wanting: list[Resident] = []
    for model in models:
        model.yielding = False
        model.behind = ()
        if model.resident:
            residents.append(model)
        elif model.phase == "absent" and model.waiting:
            wanting.append(model)
    room = _Room(residents, budget_bytes, now)
    if room.free < 0:
        made.evict += room.relieve()
    if not wanting:
        return made
    wanting.sort(key=_turn_order)
    for model in wanting:
        if (why := room.refusal(model)) is not None:
            made.refuse.append((model, why))
        elif not loads or model.retry_s > now:
            continue
        elif room.takes(model):
            made.spawn.append(model)
            if model.traits.exclusive:
                break
        else:
            made.lacking = True
            made.evict += room.reserve(model)
            if model.traits.exclusive:
                break
    for model in made.spawn:
        for other in wanting:
            if other is not model and other.retry_s <= now and other.oldest_s < model.oldest_s:
                other.passed += 1
    return made


class _Room:
    """The budget while it is being shared out. Bytes."""

    def __init__(self, residents: list[Resident], budget_bytes: int, now: float) -> None:
        self._residents = residents
        self._budget = budget_bytes
        self._now = now
        self._chosen: set[int] = set()
        self.free = budget_bytes - sum(model.booked_bytes for model in residents)
        self._coming = sum(model.booked_bytes for model in residents if model.going)
        """Free when what leaves already is gone; not counted in `free`."""

    def relieve(self) -> list[Resident]:
        """Idle models that leave because the residents have grown over the budget. One alone may stay."""
        leaving: list[Resident] = []
        staying = sum(not model.going for model in self._residents)
        for model in self._at_rest():
            if self.free + self._coming >= 0 or staying - len(leaving) <= 1:
                break
            leaving.append(model)
            self._choose([model])
        return leaving

    def refusal(self, model: Resident) -> Why | None:
        """Why the model will not get room, however long it waits."""
        if model.traits.cost_bytes > self._budget:
            return Why.TOO_LARGE
        staying = [other for other in self._residents if other.staying]
        taken = sum(other.booked_bytes for other in staying)
        if staying and (
            taken + model.traits.cost_bytes > self._budget or any(_clash(model, other) for other in staying)
        ):
            return Why.PINNED
        return None

    def takes(self, model: Resident) -> bool:
        """Whether the model may load now; then its room is taken."""
        if model.traits.cost_bytes > self.free or any(_clash(model, other) for other in self._residents):
            return False
        self.free -= model.traits.cost_bytes
        self._residents.append(model)
        return True

    def reserve(self, model: Resident) -> list[Resident]:
        """Keep room for the model. Returns who leaves for it now; who has to later is made to yield."""
        cost = model.traits.cost_bytes
        clashing = [other for other in self._residents if _clash(model, other) and not other.going]
        chosen = [other for other in clashing if other.movable and id(other) not in self._chosen]
        forced = len(chosen)
        lack = cost - self.free - self._coming - _bytes(chosen)
        for other in (*self._at_rest(model.oldest_s), *self._later(model.oldest_s)):
            if lack <= 0:
                break
            if other not in chosen:
                chosen.append(other)
                lack -= other.booked_bytes
        # The last chosen may be so large that it makes others needless.
        for other in reversed(chosen[forced:]):
            if lack + other.booked_bytes <= 0:
                chosen.remove(other)
                lack += other.booked_bytes
        leased = [other for other in self._residents if other.leased and not other.going]
        if leased and (lack > self._loading() or any(other in clashing for other in leased)):
            # Nobody knows how long a lease lasts: others go first.
            model.behind = _ids(leased)
            return []
        model.behind = _ids(chosen) or _ids(other for other in self._residents if not other.traits.pinned)
        self._choose(chosen)
        taken = min(cost, self._coming)
        self._coming -= taken
        self.free -= cost - taken
        # A clash with one that can't leave yet has no remedy but time.
        enough = lack <= 0 and forced == len(clashing)
        if enough and all(self._may_leave(other, model.oldest_s) for other in chosen):
            return chosen
        for other in chosen:
            other.yielding = True
        return []

    def _loading(self) -> int:
        """What may be asked to leave later, when it has been loaded."""
        return sum(model.booked_bytes for model in self._residents if model.phase == "starting")

    def _choose(self, models: Sequence[Resident]) -> None:
        self._chosen.update(id(model) for model in models)
        self._coming += _bytes(models)

    def _may_leave(self, model: Resident, since_s: float) -> bool:
        """Whether it may leave at once for one who waits since then."""
        return model.at_rest and not model.is_held(self._now, since_s)

    def _at_rest(self, since_s: float | None = None) -> list[Resident]:
        """Those that rest, least recently used first; before all others whom nobody wants.

        With `since_s` only those that may leave at once for one who waits since then.
        """
        found = [
            model
            for model in self._residents
            if model.movable
            and model.at_rest
            and id(model) not in self._chosen
            and (since_s is None or self._may_leave(model, since_s))
        ]
        return sorted(found, key=lambda model: (bool(model.waiting), model.used_s))

    def _later(self, since_s: float) -> list[Resident]:
        """Those that may leave later: held ones, then the one whose turn has lasted longest."""
        found = [
            model
            for model in self._residents
            if model.movable and id(model) not in self._chosen and not self._may_leave(model, since_s)
        ]
        return sorted(
            found,
            key=lambda model: (0, model.held_until_s) if model.at_rest else (1, model.turn_s),
        )


def _turn_order(model: Resident) -> tuple[bool, int, float]:
    overdue = model.passed >= PASSED
    return (not overdue, 0 if overdue else -model.traits.priority, model.oldest_s)


def _clash(one: Resident, other: Resident) -> bool:
    return one.traits.exclusive or other.traits.exclusive


def _ids(models: Iterable[Resident]) -> tuple[str, ...]:
    return tuple(model.traits.id for model in models)


def _bytes(models: Iterable[Resident]) -> int:
    return sum(model.booked_bytes for model in models)

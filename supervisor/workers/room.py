"""Who gets room, and who leaves for it.

Models that wait for room are looked at one after the other: those that were passed over too often, then by
priority, then by who waits longest. One that fits loads. For one that does not, the least recently used
idle models are chosen to leave, no more of them than it takes; if they are not enough, those that are
held, then busy ones, the oldest turn first. All of the chosen *yield* until every one of them rests, and
then they leave together: nobody leaves for a room that is not there yet. What a model waits for is
reserved; a later one may load beside it only in what is left over.

A loaded model that *asks* for more, for a row that needs more than its worker may take, gets room in the same
way, before any load: loads wait for the turns of others, and its row belongs to one. Those that ask are
served in the order in which they came, before them those whose rows *go on*: what has begun is to end where
it is. First those that are idle, or wait too, give back what they can, then the idle ones leave. A model that
has to leave for one that was served before it can't have its own row served: it gives that back. Of two whose
rows go on and need each other's room, that of the later one ends as it is, when its worker has nothing left
to give back.
"""

from collections.abc import Iterable, Sequence, Set
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
    trim: list[Resident] = field(default_factory=list)
    """Idle ones that are to give back what they can."""
    going_on: bool = False
    """Whether a row that goes on waits for what others hold."""
    lacking: bool = False
    """Whether a model waits for others to leave."""
    tight: bool = False
    """Whether a row waits for what others hold: they let nothing in then beyond what they count for."""
    reserved_bytes: int = 0
    """Of what nobody counts for, what is kept for those that wait."""


def plan(
    models: Iterable[Resident], budget_bytes: int, now: float, *, loads: bool, returns: bool = False
) -> Plan:
    """Share out the budget. Without `loads` nothing is started, and nobody leaves for it. With `returns` rows
    that would have to wait for memory are given back."""
    made = Plan()
    residents: list[Resident] = []
    wanting: list[Resident] = []
    for model in models:
        model.yielding = model.granted = model.back = model.cut = False
        model.behind = ()
        if model.resident:
            residents.append(model)
        elif model.phase == "absent" and model.waiting:
            wanting.append(model)
    room = _Room(residents, budget_bytes, now)
    if room.free < 0:
        made.evict += room.relieve()
    _serve_asks(made, room, budget_bytes, loads=loads, returns=returns)
    if not wanting:
        made.reserved_bytes = room.reserved
        return made
    wanting.sort(key=turn_order)
    for model in wanting:
        if (why := room.refusal(model)) is not None:
            made.refuse.append((model, why))
        elif not loads or model.retry_s > now:
            continue
        elif room.takes(model):
            if room.claims(model.traits.cost_bytes):
                made.spawn.append(model)
            else:
                # They count for less than they were told that they may take, and have soon heard otherwise.
                model.behind = _ids(
                    other for other in room.residents if other.claim_bytes > other.booked_bytes
                )
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
    made.reserved_bytes = room.reserved - sum(model.traits.cost_bytes for model in made.spawn)
    return made


def most_bytes(model: Resident, residents: Iterable[Resident], budget_bytes: int) -> int:
    """What the model could be given if all who may leave did."""
    others = (other.least_bytes for other in residents if other is not model and other.staying)
    return max(0, budget_bytes - sum(others))


def _serve_asks(made: Plan, room: "_Room", budget_bytes: int, *, loads: bool, returns: bool) -> None:
    asking = [model for model in room.residents if model.wanted_bytes and model.phase == "ready"]
    for model in sorted(asking, key=lambda model: (not model.goes_on, model.asked_s)):
        if model.wanted_bytes > most_bytes(model, room.residents, budget_bytes):
            # Its worker refuses the row when it hears that.
            continue
        if room.gives(model):
            continue
        deadlocked = room.is_chosen(model) or (model.going and made.tight)
        if deadlocked or (returns and not model.goes_on):
            model.back = True
            model.cut = model.stalled
            if not returns:
                model.end_turn()
        elif loads or returns:
            made.tight = made.lacking = True
            made.going_on |= model.goes_on
            trim, evict = room.reserve_more(model)
            made.trim += trim
            made.evict += evict
        room.guard(model)


class _Room:
    """The budget while it is being shared out. Bytes."""

    def __init__(self, residents: list[Resident], budget_bytes: int, now: float) -> None:
        self.residents = residents
        self._budget = budget_bytes
        self._now = now
        self._chosen: set[int] = set()
        self._guarded: set[int] = set()
        """Those that ask for more. Nobody who asked later makes them leave."""
        self.reserved = 0
        """Taken off `free` so far."""
        self._unclaimed = budget_bytes - sum(model.claim_bytes for model in residents)
        """What no worker may think that it may take."""
        self.free = budget_bytes - sum(model.booked_bytes for model in residents)
        self._coming = sum(model.booked_bytes for model in residents if model.going)
        """Free when what leaves already is gone; not counted in `free`."""

    def relieve(self) -> list[Resident]:
        """Idle models that leave because the residents have grown over the budget, or that has shrunk. One
        alone may stay if it could load as well."""
        leaving: list[Resident] = []
        staying = sum(not model.going for model in self.residents)
        for model in self._at_rest():
            alone = staying - len(leaving) <= 1
            if self.free + self._coming >= 0 or (alone and model.traits.cost_bytes <= self._budget):
                break
            leaving.append(model)
            self._choose([model])
        return leaving

    def refusal(self, model: Resident) -> Why | None:
        """Why the model will not get room, however long it waits."""
        if model.traits.cost_bytes > self._budget:
            return Why.TOO_LARGE
        staying = [other for other in self.residents if other.staying]
        taken = sum(other.booked_bytes for other in staying)
        if staying and (
            taken + model.traits.cost_bytes > self._budget or any(_clash(model, other) for other in staying)
        ):
            return Why.PINNED
        return None

    def takes(self, model: Resident) -> bool:
        """Whether the model may load now; then its room is taken."""
        if model.traits.cost_bytes > self.free or any(_clash(model, other) for other in self.residents):
            return False
        self._reserve(model.traits.cost_bytes)
        self.residents.append(model)
        return True

    def claims(self, size: int) -> bool:
        """Whether there is so much that no worker may think that it may take; then it is gone."""
        if size > self._unclaimed:
            return False
        self._unclaimed -= size
        return True

    def gives(self, model: Resident) -> bool:
        """Whether what the model asks for is there; then it is kept for it."""
        if model.lack_bytes > self.free:
            return False
        self._reserve(max(0, model.lack_bytes))
        model.granted = True
        return True

    def guard(self, model: Resident) -> None:
        """Let nobody who asks later make this one leave."""
        self._guarded.add(id(model))

    def is_chosen(self, model: Resident) -> bool:
        """Whether it has to leave for another one."""
        return id(model) in self._chosen

    def reserve_more(self, model: Resident) -> tuple[list[Resident], list[Resident]]:
        """Keep room for what the model asks for. Returns who is to give back what it can, and who leaves;
        one that has to leave later is made to yield."""
        if model.going:
            # It goes when its row has been served, and not before.
            self._coming -= model.booked_bytes
        lack = model.lack_bytes - self.free - self._coming
        trimmed = []
        resting = [
            other
            for other in self.residents
            if other is not model
            and (other.at_rest or (other.phase == "ready" and other.wanted_bytes))
            and not (other.lean or other.going)
        ]
        for other in sorted(resting, key=lambda other: other.used_s):
            if lack <= 0:
                break
            if other.booked_bytes > other.cost_bytes:
                trimmed.append(other)
                lack -= other.booked_bytes - other.cost_bytes
        if not trimmed:
            spared = self._guarded | {id(model)}
            return [], self._reserve_for(model, model.lack_bytes, model.asked_s, spared=spared)
        for other in trimmed:
            other.yielding = True
        model.behind = _ids(trimmed)
        self._reserve(max(0, model.lack_bytes))
        return [other for other in trimmed if not other.trimmed], []

    def reserve(self, model: Resident) -> list[Resident]:
        """Keep room for a model that is to load. Returns who leaves for it now; who has to later is made to
        yield."""
        clashing = [other for other in self.residents if _clash(model, other) and not other.going]
        return self._reserve_for(model, model.traits.cost_bytes, model.oldest_s, clashing)

    # How it is reckoned.

    def _reserve(self, size: int) -> None:
        self.free -= size
        self.reserved += size

    def _reserve_for(
        self,
        model: Resident,
        cost: int,
        since_s: float,
        clashing: Sequence[Resident] = (),
        *,
        spared: Set[int] = frozenset(),
    ) -> list[Resident]:
        chosen = [other for other in clashing if other.movable and id(other) not in self._chosen]
        forced = len(chosen)
        lack = cost - self.free - self._coming - _bytes(chosen)
        for other in (*self._at_rest(since_s), *self._later(since_s)):
            if lack <= 0:
                break
            if other not in chosen and id(other) not in spared:
                chosen.append(other)
                lack -= other.booked_bytes
        # The last chosen may be so large that it makes others needless.
        for other in reversed(chosen[forced:]):
            if lack + other.booked_bytes <= 0:
                chosen.remove(other)
                lack += other.booked_bytes
        leased = [
            other for other in self.residents if other is not model and other.leased and not other.going
        ]
        if leased and (lack > self._loading() or any(other in clashing for other in leased)):
            # Nobody knows how long a lease lasts: others go first.
            model.behind = _ids(leased)
            return []
        others = [other for other in self.residents if other is not model]
        model.behind = (
            _ids(chosen) or _ids(other for other in others if not other.traits.pinned) or _ids(others)
        )
        self._choose(chosen)
        taken = max(0, min(cost, self._coming))
        self._coming -= taken
        self._reserve(max(0, cost) - taken)
        # A clash with one that can't leave yet has no remedy but time.
        enough = lack <= 0 and forced == len(clashing)
        if enough and all(self._may_leave(other, since_s) for other in chosen):
            return chosen
        for other in chosen:
            other.yielding = True
        return []

    def _loading(self) -> int:
        """What may be asked to leave later, when it has been loaded."""
        return sum(model.booked_bytes for model in self.residents if model.phase == "starting")

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
            for model in self.residents
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
            for model in self.residents
            if model.movable and id(model) not in self._chosen and not self._may_leave(model, since_s)
        ]
        return sorted(
            found,
            key=lambda model: (0, model.held_until_s) if model.at_rest else (1, model.turn_s),
        )


def turn_order(model: Resident) -> tuple[bool, int, float]:
    """Sorts those that wait for room: who is first gets it first."""
    overdue = model.passed >= PASSED
    return (not overdue, 0 if overdue else -model.traits.priority, model.oldest_s)


def _clash(one: Resident, other: Resident) -> bool:
    return one.traits.exclusive or other.traits.exclusive


def _ids(models: Iterable[Resident]) -> tuple[str, ...]:
    return tuple(model.traits.id for model in models)


def _bytes(models: Iterable[Resident]) -> int:
    return sum(model.booked_bytes for model in models)

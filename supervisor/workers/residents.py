"""Every model of the residency policy, and what can be asked of them: here nothing changes."""

from collections.abc import Iterator

from supervisor.workers.actions import Waiting
from supervisor.workers.lease_queue import LeaseQueue
from supervisor.workers.resident import Phase, Resident
from supervisor.workers.room import turn_order


class Residents:
    """The models that have a worker, or wait for one, or failed. `Residency` is what changes them."""

    def __init__(self, budget_bytes: int, *, max_waiting: int) -> None:
        self._budget_bytes = budget_bytes
        self._max_waiting = max_waiting
        self._models: dict[str, Resident] = {}
        self._leases = LeaseQueue()
        self._pressed = False
        """Loads wait until the machine has memory again."""
        self._evicted: str | None = None
        """The model that had to make room last."""

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @property
    def max_waiting(self) -> int:
        """So many requests may wait, over all models."""
        return self._max_waiting

    @property
    def booked_bytes(self) -> int:
        """What all workers count for, also those that are not reaped yet."""
        return sum([model.booked_bytes for model in self._models.values()])

    @property
    def lease_granted(self) -> int | None:
        """The lease that holds the machine."""
        return self._leases.granted

    def next_tick(self, now: float) -> float | None:
        """When `tick` may have something to do, if nothing happens until then."""
        due_s: float | None = None
        for model in self._models.values():
            time = model.due_s(now)
            if time is not None and (due_s is None or time < due_s):
                due_s = time
        return due_s

    def model(self, model_id: str) -> Resident | None:
        """What is remembered of the model, to be looked at and not touched."""
        return self._models.get(model_id)

    def residents(self) -> Iterator[Resident]:
        """The models that have a process."""
        return (model for model in self._models.values() if model.resident)

    def phase(self, model_id: str) -> Phase:
        model = self._models.get(model_id)
        return model.phase if model else "absent"

    def in_flight(self, model_id: str) -> int:
        model = self._models.get(model_id)
        return len(model.admitted) if model else 0

    def queued(self, model_id: str) -> int:
        model = self._models.get(model_id)
        return len(model.waiting) if model else 0

    def running(self) -> int:
        """Requests that workers have, over all models."""
        return sum(len(model.admitted) for model in self._models.values())

    def waiting_count(self) -> int:
        """Requests that wait, over all models."""
        return sum(len(model.waiting) for model in self._models.values())

    def expected(self) -> str | None:
        """The model that the spare is for: the one that is loading, or else the next load is likely to be of
        the first of those that wait for room, or of the one that had to make room last, for people go back
        and forth."""
        for model in self._models.values():
            if model.phase == "starting":
                return model.traits.id
        wanting = [model for model in self._models.values() if model.phase == "absent" and model.waiting]
        if wanting:
            return min(wanting, key=turn_order).traits.id
        return self._evicted

    def share_of(self, model_id: str) -> int:
        """What the model's worker may take."""
        model = self._models.get(model_id)
        return self._budget_bytes if model is None or not model.resident else model.told_bytes

    def pinned(self) -> dict[str, int]:
        """Bytes of the models that stay whoever asks."""
        return {model.traits.id: model.least_bytes for model in self.residents() if model.staying}

    def holders(self) -> list[tuple[str, int]]:
        """Who holds how many bytes of the budget."""
        return [(model.traits.id, model.booked_bytes) for model in self.residents()]

    def waiting(self, now: float) -> list[Waiting]:
        """Who waits for what, longest first."""
        found = [
            Waiting(
                id=model.traits.id,
                count=len(model.waiting),
                oldest_s=round(now - model.oldest_s, 3),
                reason=model.reason(now, leased=bool(self._leases), pressed=self._pressed),
                behind=model.behind if model.phase == "absent" else (),
            )
            for model in self._models.values()
            if model.waiting
        ]
        return sorted(found, key=lambda waiting: -waiting.oldest_s)

    @property
    def _over_budget(self) -> bool:
        return self.booked_bytes > self._budget_bytes

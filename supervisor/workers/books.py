"""The memory budget, and what each model counts for in it."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from shared.sizes import format_size, parse_size
from shared.status import Memory
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.costs import Cost, lasting_bytes
from supervisor.catalog.machine import Machine
from supervisor.settings import MemorySettings, Settings
from supervisor.settings.keys import dotted
from supervisor.workers.actions import Traits

_BY_FAR_BYTES: Final = 2 * 2**30
_NAMED: Final = 5
RAISE: Final = 1.25
"""By this an estimate is raised, at least, when the system killed the worker while it loaded."""


class CostSource(Protocol):
    """Who knows what models cost: `catalog.costs`."""

    def cost(self, entry: ModelEntry) -> Cost: ...
    def observe(self, entry: ModelEntry, footprint_bytes: int) -> None: ...


class Books:
    """Budget and costs, in bytes. Look-ups read memory only."""

    def __init__(self, memory: MemorySettings, machine: Machine, costs: CostSource) -> None:
        self._memory = memory
        self._machine = machine
        self._costs = costs
        self._raised: dict[str, int] = {}
        """What models count for since they were killed at a load."""
        self._known: dict[str, tuple[ModelEntry, Cost, Traits]] = {}
        self.budget_bytes = budget_of(memory.budget, machine)

    def configure(self, memory: MemorySettings) -> None:
        """The settings have changed."""
        self._memory = memory
        self._reckon(self._machine)

    def learn_working_set(self, working_set_bytes: int) -> bool:
        """A worker has asked the GPU what it may hold; whether that changes the budget."""
        if working_set_bytes <= 0 or self._machine.gpu_source in ("worker", "setting"):
            return False
        return self._reckon(
            msgspec.structs.replace(self._machine, gpu_bytes=working_set_bytes, gpu_source="worker")
        )

    def _reckon(self, machine: Machine) -> bool:
        before = self.budget_bytes
        self._machine = machine
        self.budget_bytes = budget_of(self._memory.budget, machine)
        self._known.clear()
        return self.budget_bytes != before

    def cost(self, entry: ModelEntry) -> Cost:
        return self._costs.cost(entry)

    def traits(self, entry: ModelEntry) -> Traits:
        """What the policy must know of the model."""
        cost = self._costs.cost(entry)
        known = self._known.get(entry.id)
        if known is not None and known[0] is entry and known[1] == cost:
            return known[2]
        settings = entry.settings
        raised = min(self._raised.get(entry.id, 0), self.budget_bytes)
        traits = Traits(
            id=entry.id,
            cost_bytes=max(1, cost.within(self.budget_bytes), raised),
            max_concurrency=settings.max_concurrency,
            queue=settings.queue,
            idle_unload_s=settings.idle_unload_s,
            hold_s=settings.hold_s,
            priority=settings.priority,
            pinned=settings.pin,
            exclusive=settings.exclusive,
        )
        self._known[entry.id] = (entry, cost, traits)
        return traits

    def seen(self, entry: ModelEntry, memory: Memory) -> None:
        """What the model's worker holds now."""
        self._costs.observe(entry, lasting_bytes(memory))

    def killed_at_load(self, entry: ModelEntry, others_bytes: int) -> int:
        """The system killed the worker while it loaded: from now on the model counts for so much more that
        it does not load again beside the same others, which counted for `others_bytes`."""
        before = self.traits(entry).cost_bytes
        beside = self.budget_bytes - others_bytes + 1 if others_bytes else 0
        self._raised[entry.id] = min(max(int(RAISE * before), beside), self.budget_bytes)
        self._known.pop(entry.id, None)
        return self.traits(entry).cost_bytes

    def is_raised(self, model_id: str) -> bool:
        """Whether the model counts for more than was estimated and measured."""
        return model_id in self._raised

    def forget_kill(self, model_id: str) -> None:
        """Somebody asked for another try, or something has changed."""
        if self._raised.pop(model_id, None) is not None:
            self._known.pop(model_id, None)

    # What can be said before anything is loaded.

    def pinned_too_many(self, settings: Settings, entries: Sequence[ModelEntry]) -> str | None:
        """Why the models that these settings pin can't all be loaded; None when they can."""
        budget_bytes = budget_of(settings.memory.budget, self._machine)
        costs = {
            entry.id: self._costs.cost(entry).within(budget_bytes)
            for entry in entries
            if entry.settings.pin and entry.problem is None
        }
        pinned = [entry for entry in entries if entry.id in costs]
        total = sum(costs.values())
        alone = [entry for entry in pinned if entry.settings.exclusive]
        if alone and len(pinned) > 1:
            reason = f"{alone[0].id!r} is exclusive and pinned, so that no other pinned model could ever load"
        elif total > budget_bytes:
            told = ", ".join(f"{model_id} {format_size(cost)}" for model_id, cost in costs.items())
            reason = (
                f"the pinned models need {format_size(total)} together ({told}), "
                f"and the budget is {format_size(budget_bytes)}"
            )
        else:
            return None
        origin = settings.origins.get(dotted(("models", pinned[-1].id, "pin")))
        place = f"{origin.where}: " if origin is not None and origin.where else ""
        return f"{place}{reason}; unpin one, or raise memory.budget"

    def _surely_fits(self, entry: ModelEntry) -> bool:
        """Whether the model fits by far, told without a look at its files."""
        return 2 * entry.weights_bytes + _BY_FAR_BYTES <= self.budget_bytes

    def too_large(self, entries: Iterable[ModelEntry]) -> list[tuple[ModelEntry, int]]:
        """The models that can never load, and what they would count for."""
        # What a model needs beyond its weights takes a look at its files, so most are told by those alone.
        suspects = [entry for entry in entries if entry.problem is None and not self._surely_fits(entry)]
        found = [(entry, self.traits(entry).cost_bytes) for entry in suspects]
        return [(entry, cost) for entry, cost in found if cost > self.budget_bytes]

    def too_little(self, large: Sequence[tuple[ModelEntry, int]]) -> str:
        """What to say of these, which are too large: some of them, in a sentence."""
        named = ", ".join(f"{entry.id} {format_size(needs)}" for entry, needs in large[:_NAMED])
        more = f" and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
        return f"memory.budget is {format_size(self.budget_bytes)}, too little to load: {named}{more}"


def budget_of(text: str, machine: Machine) -> int:
    """Bytes for a `memory.budget`. A share is of the memory that models are kept in: the card's on CUDA."""
    if text == "auto":
        return machine.budget_bytes
    whole = machine.memory_bytes
    if machine.backend == "cuda" and machine.gpu_bytes is not None:
        whole = machine.gpu_bytes
    return max(1, parse_size(text, whole_bytes=whole))

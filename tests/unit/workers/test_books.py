"""The budget, and what models count for in it."""

from pathlib import Path

import pytest

from shared.status import Memory
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.costs import Cost
from supervisor.catalog.machine import Machine
from supervisor.settings import MemorySettings, ModelSettings, Origin, Settings
from supervisor.workers.books import Books, budget_of

GIB = 2**30
CPU = Machine("a test", "cpu", memory_bytes=64 * GIB)
METAL = Machine("a test", "metal", memory_bytes=64 * GIB, gpu_bytes=48 * GIB, gpu_source="rule")
CUDA = Machine("a test", "cuda", memory_bytes=64 * GIB, gpu_bytes=24 * GIB, gpu_source="driver")


class Costs:
    """Each model costs what the test says, in GiB."""

    def __init__(self, **costs: float) -> None:
        self.costs = {name: int(cost * GIB) for name, cost in costs.items()}
        self.observed: dict[str, int] = {}

    def cost(self, entry: ModelEntry) -> Cost:
        estimate = self.costs[entry.id]
        return Cost(min(estimate, estimate // 2), estimate, self.observed.get(entry.id))

    def observe(self, entry: ModelEntry, footprint_bytes: int) -> None:
        self.observed[entry.id] = footprint_bytes


def entry(name: str, *, pin: bool = False, exclusive: bool = False, weights: int = 0) -> ModelEntry:
    settings = ModelSettings(pin=pin, exclusive=exclusive)
    return ModelEntry(name, Path("/nowhere"), settings, weights_bytes=weights)


def books(budget: str = "10GiB", machine: Machine = CPU, **costs: float) -> Books:
    return Books(MemorySettings(budget=budget), machine, Costs(**costs))


@pytest.mark.parametrize(
    ("text", "machine", "gib"),
    [
        ("auto", CPU, 48),
        ("auto", METAL, 48),
        ("auto", CUDA, 24),
        ("12GiB", METAL, 12),
        ("50%", CPU, 32),
        ("50%", METAL, 32),
        ("50%", CUDA, 12),
        (str(GIB), CPU, 1),
    ],
)
def test_a_budget_in_bytes(text: str, machine: Machine, gib: int) -> None:
    assert budget_of(text, machine) == gib * GIB


def test_what_a_worker_says_of_the_gpu_counts_unless_somebody_said_otherwise() -> None:
    automatic = books("auto", METAL)
    assert automatic.learn_working_set(40 * GIB)
    assert automatic.budget_bytes == 40 * GIB
    assert not automatic.learn_working_set(41 * GIB), "the first has said it"
    assert not books("12GiB", METAL).learn_working_set(40 * GIB)
    assert not books("auto", CPU).learn_working_set(0)


def test_a_model_counts_for_the_larger_of_estimate_and_measurement() -> None:
    kept = books(a=2)
    a = entry("a")
    assert kept.traits(a).cost_bytes == 2 * GIB
    # What a worker can give back while it serves is not held against it.
    kept.seen(a, Memory(footprint_bytes=5 * GIB, prompt_cache_bytes=GIB, cache_bytes=GIB))
    assert kept.traits(a).cost_bytes == 3 * GIB


def test_a_model_that_could_use_more_than_there_is_gets_all_of_it() -> None:
    assert books(a=14).traits(entry("a")).cost_bytes == 10 * GIB
    assert books(a=30).traits(entry("a")).cost_bytes == 15 * GIB, "not even the least of it fits"


def test_a_load_that_was_killed_makes_the_same_set_impossible() -> None:
    kept = books(a=4)
    a = entry("a")
    assert kept.killed_at_load(a, others_bytes=5 * GIB) == 5 * GIB + 1
    assert kept.killed_at_load(a, others_bytes=2 * GIB) == 8 * GIB + 1
    # Alone it counts for more as well, but never for more than there is.
    counts = [kept.killed_at_load(a, others_bytes=0) for _ in range(5)]
    assert counts[-1] == 10 * GIB
    assert kept.is_raised("a")
    kept.forget_kill("a")
    assert kept.traits(a).cost_bytes == 4 * GIB and not kept.is_raised("a")


def test_pinned_models_must_fit_together() -> None:
    kept = books(a=4, b=5, c=6)
    settings = Settings(
        memory=MemorySettings(budget="10GiB"), origins={"models.c.pin": Origin("file", "config.toml:7")}
    )
    pinned = [entry("a", pin=True), entry("b", pin=True)]
    assert kept.pinned_too_many(settings, [*pinned, entry("c")]) is None
    reason = kept.pinned_too_many(settings, [*pinned, entry("c", pin=True)])
    assert reason == (
        "config.toml:7: the pinned models need 15.0 GiB together (a 4.0 GiB, b 5.0 GiB, c 6.0 GiB), and the "
        "budget is 10.0 GiB; unpin one, or raise memory.budget"
    )
    alone = kept.pinned_too_many(settings, [entry("a", pin=True, exclusive=True), entry("b", pin=True)])
    assert alone is not None and "'a' is exclusive and pinned" in alone


def test_models_that_can_never_load_are_found() -> None:
    kept = books(a=4, b=30)
    a, b = entry("a", weights=4 * GIB), entry("b", weights=14 * GIB)
    assert kept.too_large([a, b]) == [(b, 15 * GIB)]
    assert kept.too_large([entry("b", weights=4 * GIB)]) == [], "what fits by far is looked at"


def test_a_changed_budget_counts_at_once() -> None:
    kept = books(a=14)
    a = entry("a")
    assert kept.traits(a).cost_bytes == 10 * GIB
    kept.configure(MemorySettings(budget="20GiB"))
    assert (kept.budget_bytes, kept.traits(a).cost_bytes) == (20 * GIB, 14 * GIB)

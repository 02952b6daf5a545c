"""Does a model fit, how long may its texts be, how fast will it be: here, and on every Mac there is.

What `GET /fit` and `mlx-supervisor fit` print is what `report` returns.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from shared.limits import UNBOUNDED_CONTEXT
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.costs import Cost, demand_beside
from supervisor.catalog.footprint import (
    Demand,
    ModelSize,
    Parts,
    SizeError,
    estimate,
    largest_context,
    read_size,
    unpacks,
)
from supervisor.catalog.machine import Machine

__all__ = ["ContextError", "Fit", "Report", "Speed", "fits", "fits_size", "predict_speed", "report"]

# Fitted to mlx-lm's BENCHMARKS.md (M4 Max, 546 GB/s): Qwen3-4B in 4, 5, 6, 8 and 16 bits and Qwen3-30B-A3B in
# 4, 5, 6 and 8 within 5 %. One decode step reads the active weights and the row's cache at this share of the
# bandwidth, and starts its kernels for every layer. Other chips are taken to behave alike.
_SHARE_OF_BANDWIDTH: Final = 0.91
_SECONDS_A_LAYER: Final = 63e-6
_SECONDS_A_LAYER_OF_EXPERTS: Final = 43e-6


class ContextError(Exception):
    """Raised when more tokens are asked for than the model takes. The message is a sentence for people."""


class Speed(msgspec.Struct, frozen=True):
    """Predicted tokens a second for one request alone; None where the machine's speed is not known."""

    decode_tokens_s: float | None = None
    """At the beginning of a text."""
    decode_full_tokens_s: float | None = None
    """When the context is full."""
    prefill_tokens_s: float | None = None
    """Through a short prompt; attention makes long ones slower."""


class Fit(msgspec.Struct, frozen=True):
    """One model on one machine. All `_bytes` are estimates made before a load."""

    machine: str
    memory_bytes: int
    budget_bytes: int
    fits: bool
    context: int
    rows: int
    total_bytes: int
    parts: Parts
    largest_context: int
    """Most tokens a row that would fit; 0 when not even the weights do."""
    speed: Speed
    float32: bool = False
    """Whether the weights are unpacked at the load, as the CPU backend does when there is room."""


class Report(msgspec.Struct, frozen=True):
    """What `fit` shows of a model."""

    model: str
    architecture: str | None = None
    context: int | None = None
    """Tokens the model may have together; None when the model names no bound."""
    known: bool = True
    """False when the architecture is not one we know, so that what rows keep is a careful guess."""
    problem: str | None = None
    """Why nothing can be said; then there is nothing below."""
    here: Fit | None = None
    estimate_bytes: int | None = None
    """What the supervisor expects this model to hold; see `costs`."""
    measured_bytes: int | None = None
    """The largest footprint seen of it lately with these settings; None before its first load."""
    cost_bytes: int | None = None
    """What it counts for in the memory budget here; more than the budget means that it can't be loaded."""
    machines: tuple[Fit, ...] = ()


def predict_speed(size: ModelSize, machine: Machine, context: int) -> Speed:
    """Tokens a second for one request, from what a step reads and what a prompt token computes."""
    weights = size.weights
    widened = unpacks(size, machine)
    prefill = None
    if machine.prefill_flops and weights.prompt_parameters:
        prefill = machine.prefill_flops / (2 * weights.prompt_parameters)
    if not machine.bandwidth_bytes_s:
        return Speed(prefill_tokens_s=prefill)
    active = 4 * weights.active_parameters if widened else weights.active_bytes
    itemsize = 4 if widened else weights.activation_bytes
    overhead = 0.0
    if machine.backend != "cpu":
        overhead = size.layout.layers * _SECONDS_A_LAYER
        overhead += weights.expert_layers * _SECONDS_A_LAYER_OF_EXPERTS
    rate = machine.bandwidth_bytes_s * _SHARE_OF_BANDWIDTH

    def tokens_s(tokens: int) -> float:
        return 1 / ((active + size.layout.read_bytes(tokens, itemsize=itemsize)) / rate + overhead)

    return Speed(tokens_s(1), tokens_s(context), prefill)


def fits_size(size: ModelSize, machine: Machine, budget_bytes: int, demand: Demand, limit: int) -> Fit:
    """Whether so much fits into the budget; `limit` is the longest context that the model allows."""
    parts = estimate(size, machine, demand)
    total = parts.total_bytes
    return Fit(
        machine=machine.name,
        memory_bytes=machine.memory_bytes,
        budget_bytes=budget_bytes,
        fits=total <= budget_bytes,
        context=demand.context,
        rows=demand.rows,
        total_bytes=total,
        parts=parts,
        largest_context=largest_context(size, machine, demand, budget_bytes, limit),
        speed=predict_speed(size, machine, demand.context),
        float32=unpacks(size, machine),
    )


def fits(
    entry: ModelEntry,
    machine: Machine,
    *,
    budget_bytes: int | None = None,
    context: int | None = None,
    rows: int = 1,
) -> Fit:
    """Whether `rows` rows of `context` tokens (by default all that the model allows) fit into the budget.

    The budget is by default the machine's. Reads the folder's headers; raises SizeError and ContextError.
    """
    size = read_size(entry.directory)
    limit = _limit(entry, size)
    demand = _demand(entry, _within(entry, context, limit), rows)
    return fits_size(size, machine, budget_bytes or machine.budget_bytes, demand, limit)


def report(
    entry: ModelEntry,
    machine: Machine,
    *,
    budget_bytes: int | None = None,
    context: int | None = None,
    rows: int = 1,
    cost: Cost | None = None,
    machines: Sequence[Machine] | None = None,
) -> Report:
    """All that `fit` shows; with `machines`, such as `machine.lineup()`, the same for each of them.

    `cost` is what the supervisor counts the model for.

    Never raises for what is wrong with the model: the report says it. Raises ContextError.
    """
    if entry.problem is not None:
        return Report(entry.id, entry.architecture, entry.context, problem=entry.problem)
    try:
        size = read_size(entry.directory)
    except SizeError as error:
        return Report(entry.id, entry.architecture, entry.context, problem=str(error))
    limit = _limit(entry, size)
    demand = _demand(entry, _within(entry, context, limit), rows)
    budget_bytes = budget_bytes or machine.budget_bytes
    return Report(
        model=entry.id,
        architecture=size.architecture,
        context=entry.context or size.context,
        known=size.layout.known,
        here=fits_size(size, machine, budget_bytes, demand, limit),
        estimate_bytes=cost.estimate_bytes if cost else None,
        measured_bytes=cost.measured_bytes if cost else None,
        cost_bytes=cost.within(budget_bytes) if cost else None,
        machines=tuple(fits_size(size, other, other.budget_bytes, demand, limit) for other in machines or ()),
    )


def _demand(entry: ModelEntry, context: int, rows: int) -> Demand:
    return msgspec.structs.replace(demand_beside(entry), context=context, rows=rows)


def _within(entry: ModelEntry, context: int | None, limit: int) -> int:
    """The tokens that are asked for, by default all that the model allows. Raises ContextError."""
    if context is None or context <= limit:
        return context or limit
    why = ""
    if entry.settings.context == limit:
        why = ", as its settings have it (context)"
    elif entry.context is None:
        why = ", because it names no length of its own; set its context for more"
    raise ContextError(
        f"{entry.id} takes at most {limit} tokens, prompt and answer together{why}; "
        f"{context} are more than that."
    )


def _limit(entry: ModelEntry, size: ModelSize) -> int:
    return entry.context or size.context or UNBOUNDED_CONTEXT

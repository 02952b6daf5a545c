"""Models for examples of the residency policy, and what is looked at in its actions."""

from collections.abc import Sequence

from supervisor.workers.actions import (
    Action,
    Admit,
    Refuse,
    Traits,
    Why,
)
from supervisor.workers.residency import Residency


def traits(
    name: str,
    *,
    cost: int = 1,
    concurrency: int = 8,
    queue: int = 64,
    hold: float = 0.0,
    priority: int = 0,
    pinned: bool = False,
    exclusive: bool = False,
) -> Traits:
    return Traits(
        name,
        cost_bytes=cost,
        max_concurrency=concurrency,
        queue=queue,
        idle_unload_s=100.0,
        hold_s=hold,
        priority=priority,
        pinned=pinned,
        exclusive=exclusive,
    )


A, B, C = traits("a"), traits("b"), traits("c")


def admitted(actions: Sequence[Action]) -> list[int]:
    return [action.request for action in actions if isinstance(action, Admit)]


def refused(actions: Sequence[Action]) -> dict[int, Why]:
    return {action.request: action.why for action in actions if isinstance(action, Refuse)}


def serving(residency: Residency, *models: Traits, at: float = 0.0) -> None:
    """Make the models ready and idle, in this order of use."""
    for number, model in enumerate(models):
        request = -1 - number
        residency.arrived(request, model, at + number / 100)
        residency.ready(model.id, at + number / 100)
        residency.left(request, at + number / 100)

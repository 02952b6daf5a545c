"""What each worker may take: shares that are together never more than the budget.

A worker takes what it was told as its own, so more counts from the moment when it is told, and less when it
has said that it heard. What it has let in by then counts until its rows end; they don't grow beyond that.
"""

from collections.abc import Sequence
from typing import Final

from supervisor.workers.actions import Share
from supervisor.workers.resident import Resident
from supervisor.workers.room import most_bytes

_STEPS: Final = 256
"""Shares are parts of the budget, so that not every reading of one worker changes what the others may."""


def share_out(
    residents: Sequence[Resident], budget_bytes: int, reserved_bytes: int, *, tight: bool
) -> dict[str, Share]:
    """What the serving workers are to be told now, and is written to `residents` as told.

    Each gets what it counts for and an equal part of what nobody counts for and is not reserved; one whose
    ask is granted gets that. While a row waits for what others hold it is `tight`: they get what they cost,
    and so they do while they hold more than the budget.
    """
    free = budget_bytes - sum(model.booked_bytes for model in residents)
    tight = tight or free < 0
    free -= reserved_bytes
    part = max(0, free) // max(1, sum(not model.going for model in residents))
    unclaimed = budget_bytes - sum(model.claim_bytes for model in residents)
    shares = {}
    for model in sorted(residents, key=lambda model: (not model.granted, model.asked_s)):
        if model.phase != "ready":
            continue
        wanted = _target(model, part, max(1, budget_bytes // _STEPS), tight=tight)
        more = wanted - model.claim_bytes
        if wanted > model.told_bytes and more > unclaimed:
            # Others have not heard yet that they may take less.
            wanted = model.told_bytes
        elif more > 0:
            unclaimed -= more
        model.told_bytes = wanted
        model.share_bytes = max(model.share_bytes, wanted)
        most = most_bytes(model, residents, budget_bytes)
        shares[model.traits.id] = Share(wanted, most, model.back, model.cut)
    return shares


def _target(model: Resident, part: int, step: int, *, tight: bool) -> int:
    if model.granted:
        return max(model.wanted_bytes, model.cost_bytes)
    if tight:
        return model.cost_bytes
    if model.going:
        return model.booked_bytes
    return max(model.booked_bytes, (model.booked_bytes + part) // step * step)

"""Who wants the machine for himself, first come first served, and how the models come to rest for that.

A part of the residency policy, and as pure: it is told when workers were leased, and gives actions.
"""

from collections.abc import Collection, Iterator

from supervisor.workers.actions import Action, GiveBack, Grant, Lease
from supervisor.workers.resident import Resident


class LeaseQueue:
    """True while there is anybody in it. The first one holds the machine as soon as it is granted."""

    def __init__(self) -> None:
        self._leases: dict[int, bool] = {}
        """Lease -> whether the machine is wanted without models."""
        self._granted = False

    def __bool__(self) -> bool:
        return bool(self._leases)

    @property
    def granted(self) -> int | None:
        """The lease that holds the machine."""
        return next(iter(self._leases)) if self._granted else None

    def add(self, lease: int, *, unload: bool) -> None:
        """One more wants it, with models at rest or without any."""
        self._leases[lease] = unload

    def remove(self, lease: int, models: Collection[Resident], now: float) -> list[Action]:
        """Whoever asked has done, or does not want it any more. After the last one workers are given back."""
        if next(iter(self._leases), None) == lease:
            self._granted = False
        self._leases.pop(lease, None)
        if self._leases:
            return []
        actions: list[Action] = []
        for model in models:
            if model.ours == "no":
                continue
            model.leased = model.leased and model.ours != "held"
            model.ours = "no"
            model.begin_turn(now)
            model.used_s = now
            actions.append(GiveBack(model.traits.id))
        return actions

    def let_go(self, models: Collection[Resident]) -> Iterator[Action]:
        """Give back, for now, the workers that were leased for it, or are to be: a row needs their room."""
        for model in models:
            if model.ours != "no" and not self._granted:
                model.leased = model.leased and model.ours != "held"
                model.ours = "no"
                yield GiveBack(model.traits.id)

    def bring_to_rest(self, models: Collection[Resident], *, waits: bool) -> Iterator[Action]:
        """What is still to be done for the first of those who want the machine. While it `waits` for a row
        that goes on, no worker is leased."""
        lease, unload = next(iter(self._leases.items()))
        for model in models:
            if unload and (model.phase == "starting" or model.at_rest or model.ours == "held"):
                if model.ours != "no":
                    model.ours = "no"
                    model.leased = False
                    yield GiveBack(model.traits.id)
                yield model.stop("leased")
            elif waits:
                continue
            elif model.phase == "ready" and model.ours == "no" and not model.admitted and not model.going:
                model.ours = "asked"
                yield Lease(model.traits.id)
        done = all(model.phase == "ready" and model.ours == "held" for model in models if model.resident)
        if done and not self._granted:
            self._granted = True
            yield Grant(lease)

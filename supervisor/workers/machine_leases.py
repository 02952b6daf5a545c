"""Everybody who wants the machine for himself, in order, and what the policy says to that."""

import asyncio
import contextlib
import hmac
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from supervisor.telemetry.events import Events
from supervisor.workers.actions import Action
from supervisor.workers.keeper import Keeper
from supervisor.workers.leases import LeaseView, MachineLease, WorkerLeases
from supervisor.workers.residency import Residency


class MachineLeases:
    """Leases of the machine, and those of our own workers that they take.

    `act` carries out actions of the policy; `bring_back` is told at the end of a lease which models were
    unloaded for it.
    """

    def __init__(
        self,
        policy: Residency,
        keepers: Mapping[str, Keeper],
        events: Events,
        *,
        act: Callable[[Iterable[Action]], None],
        bring_back: Callable[[list[str]], None],
    ) -> None:
        self._policy = policy
        self._keepers = keepers
        self._events = events
        self._act = act
        self._bring_back = bring_back
        self._numbers = itertools.count(1)
        self._leases: dict[int, MachineLease] = {}
        self._workers = WorkerLeases(events, self._on_taken)

    def __len__(self) -> int:
        return len(self._leases)

    @contextlib.asynccontextmanager
    async def hold(self, holder: str, *, unload: bool, pid: int | None = None) -> AsyncIterator[MachineLease]:
        """Want the machine; see `Pool.lease`."""
        loop = asyncio.get_running_loop()
        lease = MachineLease(next(self._numbers), holder, unload=unload, pid=pid)
        self._leases[lease.number] = lease
        loaded = [keeper.id for keeper in self._keepers.values() if keeper.state not in ("gone", "failed")]
        self._events.emit("lease.asked", holder=lease.name, unload=unload)
        try:
            self._act(self._policy.lease_asked(lease.number, loop.time(), unload=unload))
            yield lease
        finally:
            del self._leases[lease.number]
            held_s = round(loop.time() - lease.since_s, 3) if lease.granted.done() else None
            self._events.emit("lease.ended", holder=lease.name, held_s=held_s)
            self._act(self._policy.lease_ended(lease.number, loop.time()))
            self._bring_back(loaded if unload else [])

    def grant(self, number: int) -> None:
        """The machine is at rest, and belongs to this lease."""
        lease = self._leases[number]
        lease.grant()
        self._events.emit("lease.granted", holder=lease.name, unload=lease.unload)

    def own(self, token: str, command_pid: int | None) -> LeaseView | None:
        """See `Pool.own_lease`."""
        offered = token.encode()
        for lease in self._leases.values():
            if lease.granted.done() and hmac.compare_digest(lease.token.encode(), offered):
                if command_pid is not None and lease.begin(command_pid):
                    self._events.emit("lease.held", holder=lease.name)
                return lease.view(asyncio.get_running_loop().time())
        return None

    def take_worker(self, model_id: str) -> None:
        """Ask the model's worker for exclusive use."""
        if (life := self._keepers[model_id].life) is not None:
            self._workers.take(model_id, life)

    def give_worker_back(self, model_id: str) -> None:
        """End that use, or the wait for it."""
        self._workers.give_back(model_id)
        self._keepers[model_id].note_lease(0)

    def _on_taken(self, model_id: str) -> None:
        self._keepers[model_id].note_lease(1)
        self._act(self._policy.taken(model_id, asyncio.get_running_loop().time()))

    def views(self, now: float) -> tuple[LeaseView, ...]:
        """Who wants the machine, and who has it."""
        return tuple(lease.view(now) for lease in self._leases.values())

    def take_back(self) -> None:
        """The supervisor ends, and with it all there was to be leased."""
        for lease in self._leases.values():
            lease.take_back()

    async def close(self) -> None:
        """End the leases of workers."""
        await self._workers.close()

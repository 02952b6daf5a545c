"""The body of `GET /engine`: every worker as the supervisor last knew it."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from shared import __version__
from shared.status import Memory
from supervisor.system.pressure import Level
from supervisor.workers.actions import Waiting
from supervisor.workers.books import Books
from supervisor.workers.exits import Exit
from supervisor.workers.failures import public
from supervisor.workers.keeper import Keeper
from supervisor.workers.launcher import Launcher
from supervisor.workers.leases import LeaseView
from supervisor.workers.machine_leases import MachineLeases
from supervisor.workers.resident import Resident
from supervisor.workers.residents import Residents

Reason = Literal["loading", "in use", "leased", "held", "pinned", "idle", "leaving"]
"""Why a model has a worker."""


class SupervisorView(msgspec.Struct, frozen=True):
    version: str
    pid: int
    started_at: float
    """Seconds since 1970."""
    home: str


class WorkerView(msgspec.Struct, frozen=True):
    """One model that has a worker, or whose worker failed."""

    id: str
    state: str
    pid: int | None
    socket: str | None
    generation: int
    """Counts this model's spawns since the supervisor started."""
    restarts: int
    """Of these, how many replaced a worker that had died."""
    last_exit: Exit | None
    """The last end that nobody had asked for."""
    in_flight: int
    queued: int
    leases: int
    memory: Memory | None
    """At the last reading: after the load, while busy, and after each burst."""
    footprint_bytes: int
    idle_s: float | None
    """Since the last answer; None while something is in flight or the worker isn't ready."""
    estimate_bytes: int = 0
    """What it was expected to hold, before its first load."""
    measured_bytes: int | None = None
    """The most that it was seen to hold, prompts' state apart, in this run or an earlier one."""
    booked_bytes: int = 0
    """What it counts for in the budget."""
    share_bytes: int = 0
    """What it may take."""
    asks: "AskView | None" = None
    """For a row that needs more."""
    failure: str | None = None
    """Why it is not tried again by itself; None unless it has failed."""
    why: Reason | None = None
    leaves_s: float | None = None
    """In how many seconds it leaves if nobody asks for it; None if it stays, or is in use."""


class AskView(msgspec.Struct, frozen=True):
    """A row that needs more than its worker may take waits."""

    bytes: int
    """What the worker would have to be allowed to take."""
    since_s: float
    behind: dict[str, int]
    """Whom it waits for, and what they hold; nobody, while it is being told."""


class MemoryView(msgspec.Struct, frozen=True):
    """The memory budget of all models together."""

    budget_bytes: int = 0
    booked_bytes: int = 0
    """What the workers count for, those among them that are not reaped yet."""
    pressure: str = "normal"
    """How short of memory the machine is, as the system itself judges: `normal`, `warn` or `critical`."""


class SpareView(msgspec.Struct, frozen=True):
    pid: int


class EngineView(msgspec.Struct, frozen=True):
    supervisor: SupervisorView
    workers: tuple[WorkerView, ...]
    spare: SpareView | None
    waiting: tuple[Waiting, ...]
    memory: MemoryView = MemoryView()
    leases: tuple[LeaseView, ...] = ()
    """Who has the machine for himself, then who waits for that."""


class Overview:
    """Makes the view of all parts as they are."""

    def __init__(
        self,
        folder: Path,
        keepers: Mapping[str, Keeper],
        policy: Residents,
        books: Books,
        launcher: Launcher,
        leases: MachineLeases,
    ) -> None:
        self._keepers = keepers
        self._policy = policy
        self._books = books
        self._launcher = launcher
        self._leases = leases
        self._supervisor = SupervisorView(__version__, os.getpid(), time.time(), str(folder))

    def engine(self, level: Level, now: float) -> EngineView:
        """Every worker as last known; asks nobody. `level` is how short of memory the machine is."""
        spare = self._launcher.spare
        return EngineView(
            supervisor=self._supervisor,
            workers=tuple(
                worker_view(keeper, self._policy, self._books, now)
                for keeper in self._keepers.values()
                if keeper.state != "gone"
            ),
            spare=SpareView(spare.pid) if spare is not None else None,
            waiting=tuple(self._policy.waiting(now)),
            memory=MemoryView(self._policy.budget_bytes, self._policy.booked_bytes, pressure=str(level)),
            leases=self._leases.views(now),
        )


def worker_view(keeper: Keeper, policy: Residents, books: Books, now: float) -> WorkerView:
    """One worker as it is now."""
    resident = policy.model(keeper.id)
    life, entry = keeper.life, keeper.entry
    idle = resident is not None and resident.phase == "ready" and not resident.admitted
    expires_s = resident.expires_s if resident is not None else None
    cost = books.cost(entry) if entry is not None else None
    return WorkerView(
        id=keeper.id,
        state=keeper.state,
        pid=life.process.pid if life else None,
        socket=str(life.socket) if life else None,
        generation=keeper.generation,
        restarts=keeper.restarts,
        last_exit=keeper.last_exit,
        in_flight=len(resident.admitted) if resident else 0,
        queued=len(resident.waiting) if resident else 0,
        leases=keeper.leases,
        memory=keeper.memory,
        footprint_bytes=keeper.memory.footprint_bytes if keeper.memory else 0,
        idle_s=round(now - resident.used_s, 3) if resident is not None and idle else None,
        estimate_bytes=cost.estimate_bytes if cost else 0,
        measured_bytes=cost.measured_bytes if cost else None,
        booked_bytes=resident.booked_bytes if resident else 0,
        share_bytes=resident.told_bytes if resident else 0,
        asks=_ask(resident, dict(policy.holders()), now) if resident else None,
        failure=public(keeper.failure.reason) if keeper.failure else None,
        why=_reason(resident, now) if resident else None,
        leaves_s=None if expires_s is None or math.isinf(expires_s) else round(max(0.0, expires_s - now), 3),
    )


def _ask(resident: Resident, holders: dict[str, int], now: float) -> AskView | None:
    if not resident.wanted_bytes:
        return None
    behind = {name: holders[name] for name in resident.behind if name in holders}
    return AskView(resident.wanted_bytes, round(now - resident.asked_s, 3), behind)


def _reason(resident: Resident, now: float) -> Reason | None:
    if not resident.resident:
        return None
    if resident.phase == "starting":
        return "loading"
    if resident.going:
        return "leaving"
    if resident.leased:
        return "leased"
    if not resident.unused:
        return "in use"
    if resident.traits.pinned:
        return "pinned"
    return "held" if resident.yielding and resident.is_held(now) else "idle"

"""The body of `GET /engine`: every worker as the supervisor last knew it."""

import msgspec

from shared.status import Memory
from supervisor.workers.actions import Waiting
from supervisor.workers.exits import Exit


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


class SpareView(msgspec.Struct, frozen=True):
    pid: int


class EngineView(msgspec.Struct, frozen=True):
    supervisor: SupervisorView
    workers: tuple[WorkerView, ...]
    spare: SpareView | None
    waiting: tuple[Waiting, ...]

"""What goes into the residency policy and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

StopReason = Literal[
    "evicted",  # another model needs its room
    "idle",
    "unloaded",  # asked for
    "abandoned",  # nobody waits for the load any more
    "pressure",  # the machine is short of memory
    "leased",  # somebody wants the machine for himself, without models
    "removed",  # it is not in the configuration any more
    "stopping",
]
WaitReason = Literal["room", "loading", "retry", "pressure", "lease", "leased", "unloading", "turn", "busy"]


class Traits(msgspec.Struct, frozen=True):
    """What the policy must know of a model."""

    id: str
    cost_bytes: int = 1
    """What it counts for in the budget."""
    max_concurrency: int = 8
    queue: int = 64
    idle_unload_s: float = 1800.0
    hold_s: float = 0.0
    """How long it stays after its last answer although another model wants its room."""
    priority: int = 0
    """Of models that wait for room the one with the highest goes first."""
    pinned: bool = False
    exclusive: bool = False
    """Loads only when no other model is there."""

    @property
    def limit(self) -> int:
        """Requests that may be running and waiting."""
        return self.max_concurrency + self.queue

    @property
    def window(self) -> int:
        """Requests that are handed to the worker: those that run, and as many to take their rows at once."""
        return self.max_concurrency + min(self.queue, self.max_concurrency)


class Why(StrEnum):
    """Why a request is refused."""

    QUEUE_FULL = "queue_full"
    CROWDED = "crowded"
    """Too many wait, over all models."""
    FAILED = "failed"
    TOO_LARGE = "too_large"
    """It costs more than the whole budget."""
    PINNED = "pinned"
    """Beside the pinned models it has no room, and they never leave by themselves."""
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker for the model; then report `ready`, `restarting`, `failed` or `gone`."""

    model: str


@dataclass(frozen=True, slots=True)
class Admit:
    """The request may go to the model's worker."""

    request: int
    model: str


@dataclass(frozen=True, slots=True)
class Refuse:
    request: int
    model: str
    why: Why


@dataclass(frozen=True, slots=True)
class Drain:
    """The worker gets no new request; `Stop` follows when it has none any more."""

    model: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker, then report `gone`; or report `kept` when somebody else has leased it."""

    model: str
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Trim:
    """Let the worker give back what it keeps of earlier prompts."""

    model: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Take exclusive use of the worker; then report `taken`."""

    model: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End the exclusive use of the worker, taken or only asked for."""

    model: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The machine belongs to whoever asked for this lease."""

    lease: int


Action = Spawn | Admit | Refuse | Drain | Stop | Trim | Lease | GiveBack | Grant


class Waiting(msgspec.Struct, frozen=True):
    """Requests that wait for one model."""

    id: str
    count: int
    oldest_s: float
    reason: WaitReason
    behind: tuple[str, ...] = ()
    """The models that must leave before this one can load."""

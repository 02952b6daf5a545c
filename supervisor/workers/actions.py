"""What goes into the residency policy and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

StopReason = Literal["evicted", "idle", "unloaded", "stopping"]
WaitReason = Literal["room", "loading", "leased", "unloading", "turn", "busy"]


class Traits(msgspec.Struct, frozen=True):
    """What the policy must know of a model."""

    id: str
    max_concurrency: int = 8
    queue: int = 64
    idle_unload_s: float = 1800.0
    pinned: bool = False

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
    FAILED = "failed"
    NO_PLACE = "no_place"
    """Pinned models hold every place."""
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


Action = Spawn | Admit | Refuse | Drain | Stop


class Waiting(msgspec.Struct, frozen=True):
    """Requests that wait for one model."""

    id: str
    count: int
    oldest_s: float
    reason: WaitReason

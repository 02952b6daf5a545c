"""What goes into the residency policy and what comes out of it."""

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


class Spawn(msgspec.Struct, frozen=True):
    """Start a worker for the model; then report `ready`, `restarting`, `failed` or `gone`."""

    model: str


class Admit(msgspec.Struct, frozen=True):
    """The request may go to the model's worker."""

    request: int
    model: str


class Refuse(msgspec.Struct, frozen=True):
    request: int
    model: str
    why: Why


class Drain(msgspec.Struct, frozen=True):
    """The worker gets no new request; `Stop` follows when it has none any more."""

    model: str


class Stop(msgspec.Struct, frozen=True):
    """End the worker, then report `gone`; or report `kept` when somebody else has leased it."""

    model: str
    reason: StopReason


class Trim(msgspec.Struct, frozen=True):
    """Let the worker give back what it keeps of earlier prompts."""

    model: str


class Share(msgspec.Struct, frozen=True):
    """What a worker is told about memory."""

    bytes: int
    """It may take so much."""
    most_bytes: int
    """It can be given so much, if it asks and waits."""
    back: bool = False
    """Rows that need more than it may take are given back, unless their requests have begun: they would wait
    for one who waits for them."""
    cut: bool = False
    """Those that have begun, too, or they end as they are."""


class Lease(msgspec.Struct, frozen=True):
    """Take exclusive use of the worker; then report `taken`."""

    model: str


class GiveBack(msgspec.Struct, frozen=True):
    """End the exclusive use of the worker, taken or only asked for."""

    model: str


class Grant(msgspec.Struct, frozen=True):
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

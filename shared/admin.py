"""Bodies of the worker's admin routes, as both sides read and write them."""

from typing import Literal

import msgspec

from shared.status import Memory

WorkerState = Literal["loading", "ready", "leased", "draining"]


class DraftStats(msgspec.Struct, frozen=True):
    """What became of the draft's proposals. Counters are since the worker's start."""

    steps: int
    """Engine steps that checked proposals."""
    proposed: int
    """Tokens."""
    accepted: int
    """Tokens proposed that are in an answer."""


class Health(msgspec.Struct, frozen=True):
    """`GET /admin/health`."""

    state: WorkerState
    model: str
    pid: int
    generation: int
    in_flight: int
    """Requests admitted and not finished, running or waiting for a row."""
    running: int
    """Rows in the engine's batch now."""
    queued: int
    leases: int
    """Leases held or waited for."""
    steps: int
    """Engine steps since the start; it must advance while rows run."""
    memory: Memory
    draft: DraftStats | None = None
    """None without a draft."""
    tokens: int = 0
    """Tokens generated since the start, those of answers under way included."""


class DrainAsked(msgspec.Struct, frozen=True):
    """`POST /admin/drain`."""

    timeout_ms: int = 60_000


class Drained(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/drain`: false with what is still in flight when the time ran out."""

    drained: bool
    in_flight: int
    waited_ms: int


class TrimAsked(msgspec.Struct, frozen=True):
    """`POST /admin/memory/trim`: free at least `bytes`; None frees all there is."""

    bytes: int | None = None


class Trimmed(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/memory/trim`."""

    freed_bytes: int
    memory: Memory


class LimitAsked(msgspec.Struct, frozen=True):
    """`POST /admin/memory/limit`: take no more than `bytes` from now on. What runs goes on as far as it
    was let.

    A row that needs more waits, and `wanted_bytes` of the next readings asks for it.
    """

    bytes: int
    most_bytes: int | None = None
    """There will never be more than this, so a row that needs it is refused. None is the whole budget."""
    pinned: dict[str, int] = {}
    """Models that always stay beside it, and what they hold."""
    back: bool = False
    """Give rows back that need more than `bytes`, instead of letting them wait, unless their request has
    begun."""
    cut: bool = False
    """Give those back too, or end them with what they have said where the client has some of it."""


class Limited(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/memory/limit`."""

    rows_bytes: int
    """What that leaves for running rows."""
    memory: Memory


class SavedStats(msgspec.Struct, frozen=True):
    """Prompt state on disk. Counters are since the worker's start."""

    entries: int
    """Of this model."""
    bytes: int
    limit_bytes: int
    """Of all models together."""
    spills: int
    """States written."""
    restores: int
    """States read back."""
    restore_s: float
    """Seconds that took, all together."""
    dropped: int
    """Not written for want of room, or of a kind that can't be."""
    failed: int
    """Damaged or foreign files removed, and writes that the disk refused."""


class CacheStats(msgspec.Struct, frozen=True):
    """`GET /admin/cache`: what is kept of earlier prompts. Counters are since the worker's start."""

    entries: int
    bytes: int
    limit_bytes: int
    hits: int
    misses: int
    session_hits: int
    """Hits on state of the request's own session."""
    reused_tokens: int
    """Prompt tokens that needed no computing."""
    evictions: int
    saved: SavedStats | None = None
    """None when nothing is saved."""


class Leased(msgspec.Struct, frozen=True):
    """First line of the answer of `POST /admin/lease`; the lease lasts as long as the response is open."""

    state: Literal["leased"] = "leased"
    waited_ms: int = 0


class MemoryInput(msgspec.Struct, frozen=True):
    """What one internal completion reads."""

    user: str
    system: str | None = None


class MemoryAsked(msgspec.Struct, frozen=True):
    """`POST /admin/memory/complete`: one or several short completions of one stage."""

    stage: str
    input: MemoryInput | list[MemoryInput]
    max_tokens: int


class MemoryOutput(msgspec.Struct, frozen=True):
    """One internal completion."""

    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int


class MemoryCompleted(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/memory/complete`, in the order of the inputs."""

    stage: str
    outputs: list[MemoryOutput]


class AdaptersAsked(msgspec.Struct, frozen=True):
    """`POST /admin/adapters`. `name` and, to mount, the absolute `path` of the folder."""

    action: Literal["list", "mount", "unmount"]
    name: str | None = None
    path: str | None = None


class Adapter(msgspec.Struct, frozen=True):
    """One that requests may ask for."""

    name: str
    path: str
    bytes: int


class AdaptersMounted(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/adapters`: all there are after it, by name."""

    adapters: list[Adapter]


class Cancelled(msgspec.Struct, frozen=True):
    """Answer of `POST /admin/requests/{id}/cancel`."""

    id: str
    cancelled: bool = True

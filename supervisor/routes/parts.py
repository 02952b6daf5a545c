"""What the routes show and act on."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from shared.admin import CacheStats, Health
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.costs import Costs
from supervisor.catalog.downloads import Downloads
from supervisor.history.history import History
from supervisor.home import Home
from supervisor.settings import Settings
from supervisor.telemetry.events import Events
from supervisor.telemetry.tally import Tally
from supervisor.telemetry.timelines import Timelines
from supervisor.workers.leases import LeaseView, MachineLease
from supervisor.workers.view import EngineView


class ModelPool(Protocol):
    """The pool, as far as routes know it."""

    def engine(self) -> EngineView: ...
    def state_of(self, model_id: str) -> str | None: ...
    def capabilities_of(self, model_id: str) -> tuple[str, ...] | None: ...
    def folders(self) -> set[Path]: ...
    async def ask_workers(self) -> Mapping[str, tuple[Health | None, CacheStats | None]]: ...
    async def load(self, entry: ModelEntry) -> None: ...
    async def unload(self, model_id: str) -> None: ...
    def lease(
        self, holder: str, *, unload: bool, pid: int | None = None
    ) -> AbstractAsyncContextManager[MachineLease]: ...
    def own_lease(self, token: str, command_pid: int | None = None) -> LeaseView | None: ...


@dataclass(frozen=True)
class Parts:
    """The parts of a running supervisor. `started_at` is in seconds since 1970; `stop` only asks.

    `refresh` looks at the disks again, once at a time.
    """

    home: Home
    catalog: Catalog
    pool: ModelPool
    url: str
    started_at: float
    stop: Callable[[], None]
    downloads: Downloads
    refresh: Callable[[], Awaitable[None]]
    settings: Callable[[], Settings]
    """Those that count now."""
    events: Events
    tally: Tally
    timelines: Timelines
    """Of the last requests."""
    costs: Costs
    budget_bytes: Callable[[], int | None]
    """What models may take together; None is what this machine allows."""
    reload: Callable[[], Awaitable[msgspec.Struct]]
    """Reads them anew and takes them up; raises PublicError with what is wrong."""
    history: History

    @property
    def uptime_s(self) -> float:
        return time.time() - self.started_at

"""The keepers of all models, and what is known of their workers."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from shared.admin import CacheStats, Health
from supervisor.home import Home
from supervisor.settings import Settings
from supervisor.telemetry.events import Events
from supervisor.workers.control import NoAnswer, ask_cache, ask_health
from supervisor.workers.keeper import Keeper, Life, Owner
from supervisor.workers.launcher import Launcher
from supervisor.workers.sockets import SocketFiles

_STATS_S: Final = 1.0
"""What a worker gets to answer a question that somebody is curious about."""


class Keepers(Mapping[str, Keeper]):
    """Those of the models that were ever asked for, by id. Made for the first request, kept until the model
    is configured no more."""

    def __init__(
        self, home: Home, settings: Settings, launcher: Launcher, events: Events, owner: Owner
    ) -> None:
        self._home = home
        self._settings = settings
        self._launcher = launcher
        self._sockets = SocketFiles(home, events)
        self._events = events
        self._owner = owner
        self._keepers: dict[str, Keeper] = {}

    def __getitem__(self, model_id: str) -> Keeper:
        return self._keepers[model_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keepers)

    def __len__(self) -> int:
        return len(self._keepers)

    def of(self, model_id: str) -> Keeper:
        """The model's keeper, made if it has none yet."""
        keeper = self._keepers.get(model_id)
        if keeper is None:
            keeper = self._keepers[model_id] = Keeper(
                model_id,
                home=self._home,
                settings=self._settings.watch,
                log_limits=self._settings.log.limits,
                memory=self._settings.memory,
                launcher=self._launcher,
                sockets=self._sockets,
                events=self._events,
                owner=self._owner,
            )
        return keeper

    def forget(self, model_id: str) -> None:
        """Nobody can ask for the model any more."""
        self._keepers.pop(model_id, None)

    def configure(self, settings: Settings) -> None:
        """These settings count from now on."""
        self._settings = settings
        for keeper in self._keepers.values():
            keeper.configure(settings.watch, settings.memory)

    def clear_stale(self) -> None:
        """Remove the sockets that an earlier supervisor left."""
        self._sockets.clear_stale()

    # What is known of the workers.

    @property
    def kill_grace_s(self) -> float:
        """What a process gets between SIGTERM and SIGKILL."""
        return self._settings.watch.kill_grace_s

    @property
    def loading(self) -> bool:
        """Whether a model loads."""
        return any(keeper.state in ("starting", "restarting") for keeper in self._keepers.values())

    def state_of(self, model_id: str) -> str | None:
        """The state of the model's worker; None when it has none."""
        keeper = self._keepers.get(model_id)
        return None if keeper is None or keeper.state == "gone" else keeper.state

    def capabilities_of(self, model_id: str) -> tuple[str, ...] | None:
        """What the model can, as its last worker said; None when it was never loaded."""
        keeper = self._keepers.get(model_id)
        return None if keeper is None else keeper.capabilities

    def folders(self) -> set[Path]:
        """The folders of the models that have a worker: of an older revision than the catalog's, maybe."""
        keepers = [keeper for keeper in self._keepers.values() if keeper.state != "gone"]
        return {keeper.entry.directory for keeper in keepers if keeper.entry is not None}

    async def ask(self) -> dict[str, tuple[Health | None, CacheStats | None]]:
        """What every serving worker says now of its requests and of what it keeps; None is no answer."""

        async def ask(keeper: Keeper, life: Life) -> tuple[str, tuple[Health | None, CacheStats | None]]:
            health = cache = None
            with contextlib.suppress(NoAnswer):
                health = await ask_health(life.upstream, timeout_s=_STATS_S)
                cache = await ask_cache(life.upstream, timeout_s=_STATS_S)
            return keeper.id, (health, cache)

        serving = [keeper for keeper in self._keepers.values() if keeper.state in ("ready", "leased")]
        return dict(
            await asyncio.gather(*(ask(keeper, keeper.life) for keeper in serving if keeper.life is not None))
        )

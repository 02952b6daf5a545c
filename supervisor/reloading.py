"""Takes changed settings up while everything goes on: `mlx-supervisor reload`, SIGHUP, `POST /api/reload`.

What is wrong is found before anything is changed: then the old settings go on, and the answer is the message
that a start would have ended with.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shared.errors import PublicError
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.home import Home
from supervisor.settings import Settings, SettingsError
from supervisor.telemetry.events import Events
from supervisor.workers.pool import Pool

_AT_START_ONLY: Final = ("server.host", "server.port", "history", "log")
"""Keys, or whole tables."""


class Reloaded(msgspec.Struct, frozen=True):
    """`POST /api/reload`: what became of it, by model id or key."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """They finish what they have."""
    changed: tuple[str, ...] = ()
    next_load: tuple[str, ...] = ()
    """Of the changed ones those that are loaded: part of it counts when they load again."""
    next_start: tuple[str, ...] = ()
    """Keys that count when the supervisor starts again."""
    problems: tuple[str, ...] = ()
    """In sentences: models that can't be loaded, names that mean nothing. All else counts."""


class Configured(Protocol):
    """A part that takes changed settings."""

    def configure(self, settings: Settings) -> None: ...


class Reloading:
    """`read` reads the settings anew. `parts` are told of what it read, after pool and catalog."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        *,
        home: Home,
        catalog: Catalog,
        pool: Pool,
        events: Events,
        scanning: asyncio.Lock,
        parts: tuple[Configured, ...] = (),
    ) -> None:
        self.settings = settings
        self._read = read
        self._home = home
        self._catalog = catalog
        self._pool = pool
        self._events = events
        self._scanning = scanning
        self._parts = parts

    async def reload(self) -> Reloaded:
        """Read, check, apply. Raises PublicError with what is wrong, and then nothing has changed."""
        async with self._scanning:
            try:
                settings = await asyncio.to_thread(self._read)
            except SettingsError as error:
                raise self._refused(str(error)) from None
            # A catalog of its own: until all is known to be right, requests see the old one.
            fresh = await asyncio.to_thread(Catalog, self._home, settings)
            reason = self._pool.books.pinned_too_many(settings, fresh.entries())
            if reason is not None:
                raise self._refused(reason)
            before = {entry.id: entry for entry in self._catalog.entries()}
            self._catalog.adopt(fresh)
            done = self._difference(settings, before)
            self.settings = settings
            self._pool.configure(settings)
            for part in self._parts:
                part.configure(settings)
            done = msgspec.structs.replace(done, problems=tuple(self._problems()))
        for problem in done.problems:
            self._events.emit("catalog.problem", level="warning", problem=problem)
        self._events.emit(
            "config.reloaded",
            added=len(done.added),
            removed=len(done.removed),
            changed=len(done.changed),
        )
        return done

    def _problems(self) -> list[str]:
        books = self._pool.books
        large = books.too_large(self._catalog.entries())
        return [*self._catalog.amiss(), *([books.too_little(large)] if large else [])]

    def _difference(self, settings: Settings, before: dict[str, ModelEntry]) -> Reloaded:
        after = {entry.id: entry for entry in self._catalog.entries()}
        changed = tuple(name for name in after if name in before and after[name] != before[name])
        return Reloaded(
            added=tuple(name for name in after if name not in before),
            removed=tuple(name for name in before if name not in after),
            changed=changed,
            next_load=tuple(name for name in changed if self._pool.state_of(name) not in (None, "failed")),
            next_start=tuple(
                key for key in _AT_START_ONLY if _value(settings, key) != _value(self.settings, key)
            ),
        )

    def _refused(self, reason: str) -> PublicError:
        self._events.emit("config.refused", level="warning", reason=reason)
        return PublicError(400, "invalid_config", reason)


def _value(settings: Settings, key: str) -> object:
    value: object = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value

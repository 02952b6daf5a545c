"""What each model counts for in the memory budget: what we expect it to hold, and what it was seen to hold.

What a worker will really be asked for nobody knows before. So a model counts with its weights, room to
compute, and rows that have `COST_CONTEXT` tokens together: one long conversation, or several short ones that
are answered at once. Who sets a model's `context` has said how long they get, and the full length counts. A
worker admits longer rows when there is memory for them, and what it held then counts from there on.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from shared.limits import UNBOUNDED_CONTEXT
from shared.status import Memory
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.footprint import (
    PROCESS_BYTES,
    Demand,
    ModelSize,
    Parts,
    SizeError,
    estimate,
    read_size,
)
from supervisor.catalog.machine import Machine
from supervisor.database import Database
from supervisor.settings import ModelSettings

if TYPE_CHECKING:
    import sqlite3

COST_CONTEXT: Final = 32_768
"""Tokens of all rows together that a model counts with, unless its `context` says otherwise."""
LEAST_CONTEXT: Final = 4_096
"""With less than this for its only row a model is of no use, so it does not fit."""

KEPT_DAYS: Final = 8
"""Of so many days on which a model was used the largest footprint counts: a leak is not held against it for
ever, and a model that is used once a month is still known."""
_NOTED_SHARE: Final = 0.01
"""A footprint is written down when it is larger by this than what is known."""
_DAY_S: Final = 86_400

# What a worker holds does not depend on these.
_IMMATERIAL: Final = frozenset(
    {
        "source",
        "aliases",
        "pin",
        "preload",
        "sampling",
        "thinking",
        "chat_template",
        "chat_template_kwargs",
        "set",
        "strip",
        "idle_unload_s",
        "hold_s",
        "priority",
        "exclusive",
        "queue",
    }
)

SCHEMA: Final = (
    (
        "CREATE TABLE footprints (identity TEXT NOT NULL, settings TEXT NOT NULL, day INTEGER NOT NULL, "
        "bytes INTEGER NOT NULL, model TEXT NOT NULL, PRIMARY KEY (identity, settings, day)) WITHOUT ROWID",
    ),
)
"""`day` counts from 1970; `model` is the id that it had, for people."""

_Key = tuple[str, str]
"""Identity of the model, and the settings that matter."""


class Cost(msgspec.Struct, frozen=True):
    """What one model counts for."""

    least_bytes: int
    """Expected with a single row of `LEAST_CONTEXT` tokens."""
    estimate_bytes: int
    """Expected with the rows that it counts with."""
    measured_bytes: int | None = None
    """The largest footprint seen lately with these settings; None before the first load."""

    @property
    def bytes(self) -> int:
        """The larger of what is expected and what was seen."""
        return max(self.estimate_bytes, self.measured_bytes or 0)

    def within(self, budget_bytes: int) -> int:
        """What it counts for where no more than `budget_bytes` may be used; more than that means it can't be.

        A model that could use more than there is gets all of it, alone: its worker takes shorter or fewer
        rows. Only one that has no room for `LEAST_CONTEXT` tokens does not fit.
        """
        if self.bytes <= budget_bytes:
            return self.bytes
        return max(budget_bytes, self.least_bytes)


def lasting_bytes(memory: Memory) -> int:
    """Of a worker's reading, what it can't give back while it serves: all but the prompt cache and what mlx
    keeps for reuse."""
    held = memory.footprint_bytes - memory.prompt_cache_bytes - memory.cache_bytes
    return max(held, memory.weights_bytes)


class Costs:
    """The costs of all models on this machine. Look-ups read memory only; they neither wait nor raise.

    Without a `database` footprints are known for as long as this lives.
    """

    def __init__(
        self,
        machine: Machine,
        database: Database | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # Workers decide by what is free when they load. Counting on less would be counting on luck.
        self._machine = msgspec.structs.replace(machine, available_bytes=None)
        self._table = None if database is None else database.component("footprints", SCHEMA)
        self._clock = clock
        self._footprints: dict[_Key, dict[int, int]] = {}
        """By day."""
        self._expected: dict[str, tuple[ModelEntry, int, Cost, _Key]] = {}
        self._sizes: dict[Path, tuple[str, ModelSize]] = {}

    async def load(self) -> None:
        """Read the footprints of earlier runs. Raises DatabaseError."""
        if self._table is None:
            return

        def read(connection: "sqlite3.Connection") -> list[tuple[str, str, int, int]]:
            return connection.execute("SELECT identity, settings, day, bytes FROM footprints").fetchall()

        for identity, settings, day, seen_bytes in await self._table.read(read):
            days = self._footprints.setdefault((identity, settings), {})
            days[day] = max(seen_bytes, days.get(day, 0))

    def cost(self, entry: ModelEntry) -> Cost:
        """What the model counts for. One whose folder can't be understood counts with its files' sizes."""
        expected, key = self._expect(entry)
        days = self._footprints.get(key)
        if not days:
            return expected
        return msgspec.structs.replace(expected, measured_bytes=max(days.values()))

    def observe(self, entry: ModelEntry, footprint_bytes: int) -> None:
        """The model's worker holds so much now; see `lasting_bytes`. Cheap enough for every reading."""
        _, key = self._expect(entry)
        days = self._footprints.setdefault(key, {})
        today = int(self._clock() // _DAY_S)
        if footprint_bytes <= days.get(today, 0) * (1 + _NOTED_SHARE):
            return
        days[today] = footprint_bytes
        forgotten = sorted(days)[:-KEPT_DAYS]
        for day in forgotten:
            del days[day]
        # One of a folder that was not scanned, or is broken, is known for this run only.
        if self._table is not None and entry.identity:
            self._table.post(
                lambda connection: _write(connection, key, today, footprint_bytes, entry.id, forgotten)
            )

    def _expect(self, entry: ModelEntry) -> tuple[Cost, _Key]:
        known = self._expected.get(entry.id)
        changed_ns = 0 if entry.identity else _changed_ns(entry.directory)
        if known is not None and known[0] is entry and known[1] == changed_ns:
            return known[2], known[3]
        key = (entry.identity or str(entry.directory), _material(entry.settings))
        if known is not None and known[0] == entry and known[1] == changed_ns:
            cost = known[2]
        else:
            cost = self._estimate(entry)
        self._expected[entry.id] = (entry, changed_ns, cost, key)
        return cost, key

    def _estimate(self, entry: ModelEntry) -> Cost:
        demand = demand_beside(entry)
        try:
            size = self._size(entry)
        except (SizeError, OSError):
            guessed = _files_bytes(entry.directory) + demand.adapters_bytes + PROCESS_BYTES
            return Cost(guessed, guessed)
        limit = entry.context or size.context or UNBOUNDED_CONTEXT
        tokens = limit if entry.settings.context is not None else min(limit, COST_CONTEXT)
        rows = min(entry.settings.max_concurrency, tokens)

        def parts(context: int, rows: int) -> Parts:
            asked = msgspec.structs.replace(demand, context=context, rows=rows)
            return estimate(size, self._machine, asked)

        # One long row takes the most room to compute; fixed states and windows are held by each of many.
        long, many = parts(tokens, 1), parts(tokens // rows, rows)
        expected = sum(max(getattr(long, name), getattr(many, name)) for name in long.__struct_fields__)
        least = parts(min(LEAST_CONTEXT, limit), 1).total_bytes
        share = 1.0 if entry.shards is None else entry.shards.here
        return Cost(int(min(expected, least) * share), int(expected * share))

    def _size(self, entry: ModelEntry) -> ModelSize:
        known = self._sizes.get(entry.directory)
        if known is not None and entry.identity and known[0] == entry.identity:
            return known[1]
        size = read_size(entry.directory)
        self._sizes[entry.directory] = (entry.identity, size)
        return size


def demand_beside(entry: ModelEntry) -> Demand:
    """What a worker of this model is to hold beside the model itself, as its settings say."""
    adapters_bytes, draft = _adapters_bytes(entry.settings), None
    if entry.draft is not None:
        try:
            draft = read_size(entry.draft)
        except (SizeError, OSError):
            adapters_bytes += _files_bytes(entry.draft)
    return Demand(context=1, adapters_bytes=adapters_bytes, draft=draft)


def _write(
    connection: "sqlite3.Connection", key: _Key, day: int, seen_bytes: int, model: str, forgotten: list[int]
) -> None:
    connection.execute(
        "INSERT INTO footprints VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "bytes = max(bytes, excluded.bytes), model = excluded.model",
        (*key, day, seen_bytes, model),
    )
    connection.executemany(
        "DELETE FROM footprints WHERE identity = ? AND settings = ? AND day = ?",
        [(*key, day) for day in forgotten],
    )


def _material(settings: ModelSettings) -> str:
    """The settings that what a worker holds depends on, as a text that is equal for equal ones."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__ if name not in _IMMATERIAL}
    return msgspec.json.encode(values, order="sorted").decode()


def _adapters_bytes(settings: ModelSettings) -> int:
    sizes = [
        _file_bytes(Path(folder).expanduser() / "adapters.safetensors")
        for folder in settings.adapters.values()
    ]
    return sum(sizes)


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files_bytes(folder: Path) -> int:
    try:
        return sum(_file_bytes(path) for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0


def _changed_ns(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0

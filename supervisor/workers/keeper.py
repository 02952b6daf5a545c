"""Keeps one model served: a process at a time, watched, replaced when it dies, ended when asked.

| state      | `start`  | is ready | dies                  | `drain`  | `stop`                          |
| ---------- | -------- | -------- | --------------------- | -------- | ------------------------------- |
| gone       | starting |          |                       | ignored  | ignored                         |
| starting   | an error | ready    | restarting, or failed | ignored  | stopping                        |
| ready      | an error |          | restarting, or failed | draining | draining, stopping              |
| leased     | an error |          | restarting, or failed | draining | to make room: leased; or as above |
| draining   | an error |          | gone                  | ignored  | stopping                        |
| stopping   | an error | ignored  | gone                  | ignored  | ignored                         |
| restarting | an error |          |                       | ignored  | gone                            |
| failed     | starting |          |                       | ignored  | gone                            |

A worker that dies after `stop` was asked for is gone, in whatever state it was.

One task lives through a residency and makes every move between `start` and its end but `drain`'s. It
is told, never cancelled, so no process can be forgotten half-way.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from shared import __version__
from shared.activity import Activity
from shared.admin import Health
from shared.launch import LaunchRecord
from shared.status import ExitCode, FailureKind, Memory
from supervisor.catalog.catalog import ModelEntry
from supervisor.home import Home
from supervisor.settings import MemorySettings, WatchSettings
from supervisor.telemetry.appendfile import AppendFile, LogLimits
from supervisor.telemetry.events import Events, Field, Level
from supervisor.workers.actions import StopReason
from supervisor.workers.control import NoAnswer, ask_health, ask_to_drain
from supervisor.workers.exits import Exit
from supervisor.workers.failures import shown
from supervisor.workers.feed import Feed
from supervisor.workers.launcher import Launcher
from supervisor.workers.options import options_of
from supervisor.workers.process import WorkerProcess
from supervisor.workers.restarts import RestartPolicy
from supervisor.workers.sockets import SocketFiles
from supervisor.workers.upstream import Upstream
from supervisor.workers.watch import BUSY_S, Watch, drop, first

State = Literal["gone", "starting", "ready", "leased", "draining", "stopping", "restarting", "failed"]

_MOVES: Final[Mapping[State, frozenset[State]]] = {
    "gone": frozenset({"starting"}),
    "starting": frozenset({"ready", "stopping", "restarting", "failed", "gone"}),
    "ready": frozenset({"leased", "draining", "restarting", "failed", "gone"}),
    "leased": frozenset({"ready", "draining", "restarting", "failed", "gone"}),
    "draining": frozenset({"stopping", "gone"}),
    "stopping": frozenset({"gone"}),
    "restarting": frozenset({"starting", "gone"}),
    "failed": frozenset({"starting", "gone"}),
}

OUT_OF_MEMORY_S: Final = 2.0
"""At least so long after a load that was killed for memory nothing is loaded in its place."""
_YIELDS: Final[frozenset[StopReason]] = frozenset({"evicted", "idle", "pressure", "leased", "removed"})
"""Why a worker is stopped that somebody may keep by leasing it."""
LOAD_SILENCE: Final = 6.0
"""Imports block a process for long, so a load may be silent for this many times `watch.silence`."""
_LASTING: Final = frozenset({FailureKind.MISSING, FailureKind.UNSUPPORTED, FailureKind.UNUSABLE})
"""Of loads that end the same way every time."""
_PROBE_S: Final = 2.0
_RETRY_PROBE_S: Final = 0.1

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """Whoever keeps keepers: hears what happens, and knows who wants what."""

    def on_ready(self, keeper: "Keeper") -> None: ...
    def on_restarting(self, keeper: "Keeper") -> None: ...
    def on_failed(self, keeper: "Keeper") -> None: ...
    def on_gone(self, keeper: "Keeper") -> None: ...
    def on_kept(self, keeper: "Keeper") -> None: ...
    def on_lease(self, keeper: "Keeper", *, held: bool) -> None: ...
    def on_activity(self, keeper: "Keeper", activity: Activity) -> None: ...
    def on_memory(self, keeper: "Keeper") -> None: ...
    @property
    def budget_bytes(self) -> int: ...
    def share_of(self, model_id: str) -> int: ...
    def is_busy(self, model_id: str) -> bool: ...
    def is_awaited(self, model_id: str) -> bool: ...


class Life:
    """One spawn of a model: its process, and the connections to it."""

    def __init__(self, process: WorkerProcess, generation: int, socket: Path) -> None:
        self.process = process
        self.generation = generation
        self.socket = socket
        self.upstream = Upstream(socket)
        self.over = asyncio.Event()
        """Set when the process is reaped and the owner has been told."""


class Failure(msgspec.Struct, frozen=True):
    """Why a model is not tried again by itself."""

    reason: str
    last_lines: tuple[str, ...] = ()


class Keeper:
    """Everything about one model's workers. Made once per model; each `start` begins a residency."""

    def __init__(
        self,
        model_id: str,
        *,
        home: Home,
        settings: WatchSettings,
        log_limits: LogLimits,
        memory: MemorySettings,
        launcher: Launcher,
        sockets: SocketFiles,
        events: Events,
        owner: Owner,
    ) -> None:
        self.id = model_id
        self.state: State = "gone"
        self.entry: ModelEntry | None = None
        self.life: Life | None = None
        self.generation = 0
        self.restarts = 0
        self.last_exit: Exit | None = None
        self.failure: Failure | None = None
        self.memory: Memory | None = None
        self.leases = 0
        self.capabilities: tuple[str, ...] | None = None
        """What the model was able to when it was loaded last."""
        self.starved_s: float | None = None
        """How long to wait after the residency that has just ended, because its load ran out of memory."""
        self._home = home
        self._settings = settings
        self._log_limits = log_limits
        self._memory = memory
        self._launcher = launcher
        self._sockets = sockets
        self._events = events
        self._owner = owner
        self._policy = RestartPolicy()
        self._task: asyncio.Task[None] | None = None
        self._watch: Watch | None = None
        self._feed: Feed | None = None
        self._served = False
        loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[StopReason] = loop.create_future()
        self._hurry: asyncio.Future[None] = loop.create_future()

    # What the owner asks for.

    def start(self, entry: ModelEntry) -> None:
        """Begin to serve `entry`; the owner hears `on_ready`, `on_restarting`, `on_failed` or `on_gone`."""
        assert self.state in ("gone", "failed"), f"{self.id} is {self.state} and was to start"
        loop = asyncio.get_running_loop()
        self.entry = entry
        self.failure = None
        self.starved_s = None
        self._served = False
        self._stop = loop.create_future()
        self._hurry = loop.create_future()
        self._move("starting", generation=self.generation + 1)
        self._task = loop.create_task(self._run(entry), name=f"keeper of {self.id}")

    def drain(self) -> None:
        """No new request will come, and `stop` will. A worker that dies now is not replaced."""
        if self.state in ("ready", "leased"):
            self._move("draining")

    def stop(self, reason: StopReason) -> None:
        """End the worker; the owner hears `on_gone`, or `on_kept` if it is leased and was to make room."""
        if self.state == "failed":
            self._move("gone")
        elif self.state != "gone" and not self._stop.done():
            self._stop.set_result(reason)

    def hurry(self) -> None:
        """Don't wait for what still runs, now or when `stop` comes."""
        if not self._hurry.done():
            self._hurry.set_result(None)

    def forget_deaths(self) -> None:
        """Somebody asked for another try, or something has changed."""
        self._policy.forget()

    def configure(self, settings: WatchSettings, memory: MemorySettings) -> None:
        """These settings count: for how it ends at once, for how it is watched from the next load on."""
        self._settings = settings
        self._memory = memory

    def touch(self) -> None:
        """Work has come: look after it more often."""
        if self._watch is not None:
            self._watch.touch()

    async def ended(self) -> None:
        """Wait for the end of the residency that runs now, if any."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def settled(self, generation: int) -> None:
        """Wait until the worker of this generation is known to be gone, or proves to be healthy.

        A connection ends a moment before anybody hears that the process has.
        """
        life = self.life
        if life is None or life.generation != generation:
            return
        while not life.over.is_set():
            if life.process.exited.done():
                await life.over.wait()
            elif self.state in ("ready", "leased", "draining"):
                with contextlib.suppress(NoAnswer):
                    await ask_health(life.upstream, timeout_s=_PROBE_S)
                    return
                await first({life.process.exited}, _RETRY_PROBE_S)
            else:
                await first({life.process.exited}, None)

    # One residency.

    async def _run(self, entry: ModelEntry) -> None:
        try:
            while (outcome := await self._live(entry)) == "again":
                pass
        except Exception as error:
            # Ours, not the worker's. It must neither go unseen nor leave the model in between.
            _logger.exception("the keeper of a worker failed")
            self.failure = Failure(f"an internal error ({type(error).__name__})")
            outcome = "failed"
            self.state = "starting"  # from where it may fail
            if self.life is not None:
                self.life.process.kill()
                await self.life.process.exited
                self._over(self.life)
        # The owner may start the next residency from within.
        self._task = None
        if outcome == "failed":
            reason = self.failure.reason if self.failure else None
            self._move("failed", level="error", reason=reason)
            self._owner.on_failed(self)
        else:
            self._move("gone")
            self._owner.on_gone(self)

    async def _live(self, entry: ModelEntry) -> Literal["again", "gone", "failed"]:
        """One process, from its spawn until it is reaped, and what follows from its end."""
        loop = asyncio.get_running_loop()
        spawned_s = loop.time()
        self.generation += 1
        served = False
        for_good = None
        starved = False
        socket = self._sockets.take()
        try:
            process = await self._launcher.take()
        except OSError as error:
            self._sockets.give_back(socket)
            ended = Exit(during="loading", cause=error.strerror or str(error))
        else:
            life = self.life = Life(process, self.generation, socket)
            log = AppendFile(self._home.worker_log(entry.id), self._log_limits)
            process.assign(self._record(entry, socket), log, lambda lines: self._events.lose(entry.id, lines))
            served = await self._load(process)
            if served:
                ready = process.ready.result()
                self.memory, self.capabilities = ready.memory, ready.capabilities
                self._move("ready", pid=process.pid, load_s=round(loop.time() - spawned_s, 3))
                self._owner.on_ready(self)
                await self._serve(life)
            elif not process.exited.done():
                await self._terminate(process)
            ended = await process.exited
            for_good = _hopeless(process, ended)
            starved = ended.out_of_memory or _lacked_memory(process)
            self._over(life)
        if self._stop.done() or self.state == "draining":
            return "gone"
        self._tell_death(ended)
        wait_s = self._policy.died(spawned_s, loop.time(), served=served)
        if for_good is not None or wait_s is None:
            self.failure = Failure(for_good or ended.describe(), ended.last_lines)
            return "failed"
        if starved:
            # Not beside the same others, and not at once: who may load now is for the owner to decide.
            self.starved_s = max(wait_s, OUT_OF_MEMORY_S)
            self.restarts += self._owner.is_awaited(self.id)
            return "gone"
        self._served = self._served or served
        if not self._served and not self._owner.is_awaited(self.id):
            return "gone"  # whoever caused this load has left: it is not tried again for nobody
        self.restarts += 1
        self._move("restarting", wait_s=wait_s)
        self._owner.on_restarting(self)
        await first({self._stop}, wait_s)
        if self._stop.done():
            return "gone"
        self._move("starting", generation=self.generation + 1)
        return "again"

    def _record(self, entry: ModelEntry, socket: Path) -> LaunchRecord:
        return LaunchRecord(
            socket=str(socket),
            model=entry.id,
            directory=str(entry.directory),
            generation=self.generation,
            options=options_of(
                entry.settings,
                self._memory,
                self._home.saved_state,
                entry.draft,
                entry.shards,
                memory_bytes=self._owner.share_of(entry.id),
                budget_bytes=self._owner.budget_bytes,
            ),
        )

    def _over(self, life: Life) -> None:
        """The process is reaped. Who waits for that runs after the owner has been told."""
        self._sockets.give_back(life.socket)
        self.life = None
        self.memory = None
        self.leases = 0
        life.over.set()

    async def _load(self, process: WorkerProcess) -> bool:
        """Wait for the model; False when the process died or is to stop."""
        loop = asyncio.get_running_loop()
        limit_s = LOAD_SILENCE * self._settings.silence_s
        events: set[asyncio.Future[Any]] = {process.ready, process.exited, self._stop}
        while True:
            await first(events, BUSY_S)
            if process.exited.done() or self._stop.done():
                return False
            if process.ready.done():
                return not process.ready.cancelled()
            if loop.time() - process.heard_s >= limit_s:
                process.kill(f"it said nothing for {limit_s:g} s while loading")
                await first({process.exited}, None)

    async def _serve(self, life: Life) -> None:
        """Watch the worker until it has died, killing it if it hangs, or until it has been stopped."""
        process = life.process
        self._watch = Watch(
            life.upstream,
            self._settings,
            is_busy=lambda: self._owner.is_busy(self.id),
            on_health=self._note,
        )
        self._feed = Feed(life.upstream, lambda activity: self._owner.on_activity(self, activity))
        try:
            while not process.exited.done():
                if (cause := await self._watch.run({process.exited, self._stop})) is not None:
                    process.kill(cause)
                    await first({process.exited}, None)
                elif not process.exited.done() and not await self._end(life):
                    self._owner.on_kept(self)
        finally:
            self._watch = None
            await self._stop_listening()

    async def _end(self, life: Life) -> bool:
        """Drain and stop the worker as `stop` asked; False when it is leased and may stay."""
        reason = self._stop.result()
        health = None
        if not self._hurry.done():
            # One that does not answer hangs: there is nothing to wait for.
            with contextlib.suppress(NoAnswer):
                health = await ask_health(life.upstream, timeout_s=_PROBE_S)
        if health is not None and health.leases and reason in _YIELDS:
            self._stop = asyncio.get_running_loop().create_future()
            self.leases = health.leases
            if self.state != "leased":
                self._move("leased", pid=health.pid)
            return False
        self.drain()
        if health is not None:
            await self._drain(life)
        await self._terminate(life.process)
        return True

    async def _stop_listening(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.close()

    async def _terminate(self, process: WorkerProcess) -> None:
        await self._stop_listening()
        reason = self._stop.result()
        self._move("stopping", reason=reason)
        await process.stop(grace_s=self._settings.kill_grace_s, cause=reason)

    async def _drain(self, life: Life) -> None:
        """Let the worker finish what others gave it on its own socket, and save what it wants to keep."""
        timeout_s = self._settings.drain_s
        asked = asyncio.ensure_future(ask_to_drain(life.upstream, timeout_s=timeout_s))
        try:
            await first({asked, self._hurry, life.process.exited}, timeout_s + _PROBE_S)
        finally:
            await drop(asked)

    def note_lease(self, leases: int) -> bool:
        """So many leases of the worker are held or waited for; whether that is news."""
        changed = bool(leases) != bool(self.leases)
        self.leases = leases
        if not changed or self.state not in ("ready", "leased"):
            return False
        self._move("leased" if leases else "ready", pid=self.life.process.pid if self.life else None)
        return True

    def note_memory(self, memory: Memory) -> None:
        """What it holds now, or has promised to hold. What was read before the last reading is old."""
        if self.life is None or (self.memory is not None and memory.number < self.memory.number):
            return
        self.memory = memory
        self._owner.on_memory(self)

    def _note(self, health: Health) -> None:
        if self.note_lease(health.leases):
            self._owner.on_lease(self, held=health.leases > 0)
        self.note_memory(health.memory)

    def _tell_death(self, ended: Exit) -> None:
        self.last_exit = shown(ended)
        self._events.emit(
            "worker.died",
            level="warning",
            model=self.id,
            generation=self.generation,
            how=ended.describe(),
            lived_s=ended.lived_s,
            last_line=ended.last_lines[-1] if ended.last_lines else None,
        )

    def _move(self, state: State, *, level: Level = "info", **fields: Field) -> None:
        assert state in _MOVES[self.state], f"{self.id} is {self.state} and can't become {state}"
        self.state = state
        self._events.emit(f"worker.{state}", level=level, model=self.id, **fields)


def _lacked_memory(process: WorkerProcess) -> bool:
    return process.load_failure is not None and process.load_failure.kind == FailureKind.MEMORY


def _hopeless(process: WorkerProcess, ended: Exit) -> str | None:
    """Why another try would end the same way; None when it might not."""
    if process.mismatch is not None or (ended.during == "loading" and ended.code == ExitCode.USAGE):
        theirs = f"version {process.mismatch}" if process.mismatch else "of another version"
        return f"its worker is {theirs} and this supervisor {__version__}; restart the supervisor"
    failure = process.load_failure
    if failure is not None and failure.kind in _LASTING:
        return failure.message
    return None

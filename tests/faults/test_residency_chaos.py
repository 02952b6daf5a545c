"""Everything at once: whatever happens in whatever order, each request ends and nothing is left."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from shared.errors import PublicError
from supervisor.settings import WatchSettings
from tests.fixtures.fake_shapes import Behaviour, Load
from tests.fixtures.pools import Bench, running

# For longer hunts than a test run has time for.
CHAOS_S = float(os.environ.get("MLX_TEST_CHAOS_S", "5"))
CHAOS_SEED = int(os.environ.get("MLX_TEST_CHAOS_SEED", "1"))

pytestmark = [pytest.mark.timeout(60 + 3 * CHAOS_S), pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


class Chaos:
    """Clients, and everything that can go wrong around them, until `end`."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.end = asyncio.get_running_loop().time() + CHAOS_S
        self.models = [
            bench.model("a", idle_unload_s=0.3, max_concurrency=2, queue=2),
            bench.model("b", Load(load_s=0.2), max_concurrency=1, queue=20),
            bench.model("c", Load(ignore_sigterm=True), idle_unload_s=0.05),
            bench.model("d", Load(fork_grandchild=True)),
        ]
        self.answered = 0
        self.refused: dict[str, int] = {}

    def goes_on(self) -> bool:
        return asyncio.get_running_loop().time() < self.end

    async def client(self) -> None:
        while self.goes_on():
            model = self.random.choice(self.models)
            fake = Behaviour(chunks=self.random.randint(1, 5), interval_ms=self.random.choice((0, 5, 40)))
            request = asyncio.ensure_future(self.bench.chat(model, fake))
            if self.random.random() < 0.2:
                await asyncio.wait({request}, timeout=self.random.random() / 2)
                request.cancel()
            try:
                answer = await request
                assert answer.model == model.id
                self.answered += 1
            except asyncio.CancelledError:
                pass
            except PublicError as error:
                self.refused[error.code] = self.refused.get(error.code, 0) + 1

    async def hangman(self) -> None:
        while self.goes_on():
            await asyncio.sleep(2 * self.random.random())
            workers = [worker for worker in self.bench.pool.engine().workers if worker.pid]
            if workers:
                how = self.random.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.random.choice(workers).pid or 0, how)

    async def owner(self) -> None:
        while self.goes_on():
            await asyncio.sleep(self.random.random())
            model = self.random.choice(self.models)
            with contextlib.suppress(PublicError):
                if self.random.random() < 0.5:
                    await self.bench.pool.unload(model.id)
                else:
                    await self.bench.pool.load(model)

    async def tenant(self) -> None:
        """A local program that leases workers on their own sockets."""
        while self.goes_on():
            await asyncio.sleep(self.random.random())
            workers = [worker for worker in self.bench.pool.engine().workers if worker.socket]
            if not workers:
                continue
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_unix_connection(self.random.choice(workers).socket)
                try:
                    writer.write(b"POST /admin/lease HTTP/1.1\r\nhost: w\r\ncontent-length: 0\r\n\r\n")
                    async with asyncio.timeout(self.random.random()):
                        await reader.readuntil(b"leased")
                        await asyncio.sleep(self.random.random())
                finally:
                    writer.close()


async def test_chaos(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = WatchSettings(silence_s=1.0, stall_s=2.0, drain_s=0.5, kill_grace_s=0.3)
    async with running(tmp_path, room=2, spare=True, watch=watch) as bench:
        chaos = Chaos(bench, CHAOS_SEED)
        people = [chaos.client() for _ in range(12)]
        async with asyncio.timeout(CHAOS_S + 30):
            await asyncio.gather(*people, chaos.hangman(), chaos.owner(), chaos.tenant())
        # How many is a matter of luck: three killed loads make a model `failed`.
        assert chaos.answered > 0
        assert set(chaos.refused) <= {"queue_full", "engine_unavailable"}
        # Nothing that happened is in the way of the next request.
        for model in chaos.models:
            await bench.pool.load(model)
            assert (await bench.chat(model)).model == model.id
        view = bench.pool.engine()
        assert not view.waiting and all(worker.in_flight == 0 for worker in view.workers)
    assert not caplog.records

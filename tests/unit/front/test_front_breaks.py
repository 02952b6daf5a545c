"""The front when a worker dies or a client leaves."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PublicError
from tests.fixtures.wire import Wire, connected
from tests.unit.front.asking import BODY, CHAT, error_of, eventually
from tests.unit.front.doubles import (
    EVENTS,
    chunk,
    says,
    says_ok,
    supervised,
)
from tests.unit.front.http_app import LOOPS

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

# Workers that die.

DIES_BEFORE = [says(cut=True), says(b"HTTP/1.1 200 OK\r\ncontent-le", cut=True)]


@pytest.mark.parametrize("dying", DIES_BEFORE)
async def test_a_death_before_the_first_byte_is_not_noticed(tmp_path: Path, dying: Any) -> None:
    """Fault 2: one transparent retry."""
    async with supervised(tmp_path, dying, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, BODY)
        assert (answer.status, answer.body) == (200, b"{}")
        assert here.pool.taken == 2
        assert here.requests[0] == here.requests[1]


@pytest.mark.parametrize("dying", DIES_BEFORE)
async def test_a_second_death_is_told(tmp_path: Path, dying: Any) -> None:
    """Fault 2: after that, 502 with what the pool knows of it."""
    async with supervised(tmp_path, dying) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, BODY)
        assert (answer.status, error_of(answer)["code"]) == (502, "engine_unavailable")
        assert "spawn 2" in error_of(answer)["message"]
        assert here.pool.taken == 2
        assert (await wire.ask("/health")).status == 200


async def test_an_answer_that_was_cut_at_its_start_is_asked_for_again(tmp_path: Path) -> None:
    dying = says(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", cut=True, pause_s=0.05)
    async with supervised(tmp_path, dying, says_ok) as here, connected(here.address) as wire:
        assert (await wire.ask(CHAT, BODY)).body == b"{}"


async def test_no_worker_listens(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.workers[0].close()
        assert (await wire.ask(CHAT, BODY)).status == 502


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        ((chunk(b"data: 1\n\n"),), b"data: 1\n\n"),
        ((chunk(b"data: 1\n\n"), chunk(b"data: 2\n\nda"), chunk(b"ta: 3")), b"data: 1\n\ndata: 2\n\n"),
        ((), b""),
        ((chunk(b"data: 1\n\n" + b"x" * 200_000),), b"data: 1\n\n" + b"x" * 200_000 + b"\n\n"),
    ],
)
async def test_a_death_within_a_stream_is_an_event_and_an_end(
    tmp_path: Path, before: tuple[bytes, ...], seen: bytes
) -> None:
    """Fault 1: never a clean-looking end, and never an error in the middle of another event."""
    async with supervised(tmp_path, says(EVENTS, *before, cut=True, pause_s=0.05)) as here:
        async with connected(here.address) as wire:
            answer = await wire.ask(CHAT, BODY)
            assert answer.whole
            assert answer.body.startswith(seen)
            frame = answer.body[len(seen) :]
            assert frame.startswith(b"data: ") and frame.endswith(b"\n\n")
            assert json.loads(frame[6:])["error"]["code"] == "engine_unavailable"
            assert (await wire.ask("/health")).status == 200
        assert here.pool.held == 0


async def test_a_death_within_another_answer_cuts_the_connection(tmp_path: Path) -> None:
    dying = says(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", cut=True, pause_s=0.05)
    async with supervised(tmp_path, dying) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, BODY)
        assert (answer.body, answer.whole) == (b"abc", False)


async def test_a_refusal_of_the_pool_is_the_answer(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.refusal = PublicError(429, "queue_full", "Later.", retry_after_s=2)
        answer = await wire.ask(CHAT, BODY)
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert error_of(answer)["type"] == "rate_limit_error"


# Clients that leave. Fault 25.


class Slow:
    """A worker that says `before` and then nothing, until it is let go of."""

    def __init__(self, *before: bytes) -> None:
        self.before = before
        self.reached = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.writelines(self.before)
        await writer.drain()
        self.reached.set()
        assert await reader.read() == b""
        self.left.set()
        raise ConnectionError


@pytest.mark.parametrize(
    ("before", "how"),
    [
        ((), "close"),
        ((), "reset"),
        ((EVENTS, chunk(b"data: 1\n\n")), "close"),
        ((EVENTS, chunk(b"data: 1\n\n")), "reset"),
        # One that closes within such an answer is found out by the next piece of it: nothing that may be
        # sent in between would tell whether it only has no more to say.
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",), "reset"),
    ],
)
async def test_a_client_that_leaves_stops_its_worker(tmp_path: Path, before: Any, how: str) -> None:
    worker = Slow(*before)
    async with supervised(tmp_path, worker) as here:
        wire = await Wire.open(here.address)
        wire.request(CHAT, BODY)
        await worker.reached.wait()
        await asyncio.sleep(0.02)
        wire.reset() if how == "reset" else wire.close()
        await asyncio.wait_for(worker.left.wait(), 20)
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here:
        here.pool.gate = asyncio.Event()
        wire = await Wire.open(here.address)
        wire.request(CHAT, BODY)
        await eventually(lambda: here.pool.waiting == 1)
        wire.reset()
        await eventually(lambda: here.pool.waiting == 0 and here.server.open_responses == 0)
        assert here.requests == []


async def test_a_thousand_that_leave_leak_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path, says(EVENTS + chunk(b"data: 1\n\n") * 3)) as here:
        rng = random.Random(1)

        async def leave() -> None:
            wire = await Wire.open(here.address)
            wire.request(CHAT, BODY)
            await asyncio.sleep(rng.random() * 0.02)
            wire.reset() if rng.random() < 0.5 else wire.close()

        for _ in range(20):
            await asyncio.gather(*(leave() for _ in range(50)))
        await eventually(lambda: here.server.connections == 0 and here.server.open_responses == 0)
        assert here.pool.held == 0
        upstream = here.pool.workers[0]
        assert upstream._connections == set(upstream._idle), "none carries anything"


async def test_a_stalled_reader_holds_its_worker_back(tmp_path: Path) -> None:
    """Fault 27."""
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        nonlocal sent
        writer.write(EVENTS)
        while True:
            writer.write(chunk(b"data: " + b"x" * 65536 + b"\n\n"))
            sent += 65536
            await writer.drain()

    async with supervised(tmp_path, flood) as here:
        wire = await Wire.open(here.address)
        wire.request(CHAT, BODY)
        before = 0
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 16 * 2**20  # what the kernel holds for loopback, and our buffers
        wire.reset()
        await eventually(lambda: here.pool.held == 0)

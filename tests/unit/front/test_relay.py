"""Requests that no task works on: the worker has a place and an idle connection, so nothing is waited for but
its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Api, PublicError
from supervisor.http.exchange import Exchange
from supervisor.http.server import HttpServer
from supervisor.relay import Forwarded, Relay
from supervisor.telemetry.events import Event
from tests.fixtures.wire import Wire, connected
from tests.unit.front.asking import CHAT, error_of, eventually
from tests.unit.front.doubles import END, EVENTS, Supervised, Worker, chunk, says, says_ok, supervised
from tests.unit.front.http_app import LOOPS
from tests.unit.front.test_front_breaks import Slow

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

PLAIN = b'{"model": "fake"}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
MANY = 40
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def then(worker: Worker) -> Worker:
    """Says ok to the first request, so that its connection is idle when `worker` gets what follows."""
    first = True

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        nonlocal first
        was_first, first = first, False
        await (says_ok if was_first else worker)(reader, writer, request)

    return both


@asynccontextmanager
async def warm(folder: Path, worker: Worker, *others: Worker) -> AsyncIterator[tuple[Supervised, Wire]]:
    """A front whose first worker has answered once."""
    async with supervised(folder, then(worker), *others) as here, connected(here.address) as wire:
        assert (await wire.ask(CHAT, PLAIN)).body == b"{}"
        yield here, wire


def tasks() -> set[str]:
    """What tasks there are, by what they run."""
    return {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}


async def test_none_works_on_a_short_answer(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def waits(_: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        await go.wait()
        await says_ok(_, writer, _request)

    async with warm(tmp_path, waits) as (here, wire):
        wire.request(CHAT, PLAIN)
        await eventually(lambda: here.pool.held == 1)
        assert here.server.open_responses == 1
        assert "Front._guarded" not in tasks()
        go.set()
        answer = await wire.read()
        assert (answer.status, answer.body, answer.headers["content-type"]) == (
            200,
            b"{}",
            "application/json",
        )
        assert answer.headers["x-request-id"].startswith("req_")
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)
        assert len(here.pool.workers[0]._connections) == 1


@pytest.mark.parametrize("cut", [0, 1, len(PLAIN) - 1])
async def test_none_waits_for_a_small_body(tmp_path: Path, cut: int) -> None:
    """Most clients send the head by itself."""
    async with warm(tmp_path, says_ok) as (here, wire):
        wire.send(HEAD % len(PLAIN) + PLAIN[:cut])
        await eventually(lambda: here.server.open_responses == 1)
        assert "Front._guarded" not in tasks()
        wire.send(PLAIN[cut:] + HEAD % len(PLAIN))
        assert (await wire.read()).body == b"{}"
        wire.send(PLAIN)
        assert (await wire.read()).body == b"{}"
        wire.send(HEAD % 12)
        await eventually(lambda: here.server.open_responses == 1)
        wire.send(b'{"model":""}')
        assert error_of(await wire.read())["code"] == "model_not_found"
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)


async def test_who_leaves_within_a_small_body_is_counted(tmp_path: Path) -> None:
    async with warm(tmp_path, says_ok) as (here, wire):
        seen: list[Event] = []
        here.events.subscribe(seen.append)
        wire.send(HEAD % 100 + PLAIN)
        await eventually(lambda: here.server.open_responses == 1)
        wire.reset()
        await eventually(lambda: here.server.open_responses == 0)
        await eventually(lambda: 499 in [event.fields.get("status") for event in seen])
        assert here.pool.taken == 1


@pytest.mark.parametrize(
    "head",
    [
        HEAD % (1 << 30),
        HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked"),
        (HEAD % len(PLAIN)).replace(b"Host", b"Expect: 100-continue\r\nHost"),
    ],
)
async def test_other_bodies_are_read_as_ever(tmp_path: Path, head: bytes) -> None:
    async with warm(tmp_path, says_ok) as (here, wire):
        wire.send(head)
        if b"Content-Length: 1073741824" in head:
            assert (await wire.read()).status == 413
            return
        await eventually(lambda: here.server.open_responses == 1)
        assert "Front._guarded" in tasks()
        chunked = b"chunked" in head
        wire.send(chunk(PLAIN) + END if chunked else PLAIN)
        assert (await wire.read()).body == b"{}"
        assert wire.interim == ([] if chunked else [100])


@pytest.mark.parametrize("dying", [says(cut=True), says(b"HTTP/1.1 200 OK\r\ncontent-le", cut=True)])
async def test_a_death_before_the_first_byte_is_not_noticed(tmp_path: Path, dying: Any) -> None:
    async with warm(tmp_path, dying, says(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2")) as (here, wire):
        assert (await wire.ask(CHAT, PLAIN)).body == b"2"
        assert here.pool.taken == 3
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)


async def test_a_second_death_is_told_in_the_words_of_the_api(tmp_path: Path) -> None:
    async with warm(tmp_path, says(cut=True), says(cut=True)) as (here, wire):
        answer = await wire.ask(CHAT, PLAIN)
        assert (answer.status, error_of(answer)["code"]) == (502, "engine_unavailable")
        assert (await wire.ask("/v1/messages", PLAIN)).headers["request-id"].startswith("req_")
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)


@pytest.mark.parametrize(
    ("parts", "body", "whole"),
    [
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n", b"abc", b"def"), b"abcdef", True),
        (
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"abc"), b"0\r\n\r\n"),
            b"abc",
            True,
        ),
        ((EVENTS, chunk(b"data: 1\n\n"), END), b"data: 1\n\n", True),
        ((EVENTS + chunk(b"data: 1\n\n") + END,), b"data: 1\n\n", True),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b"", True),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000,), b"x" * 300_000, True),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",), b"abc", False),
    ],
)
async def test_other_answers_come_as_ever(
    tmp_path: Path, parts: tuple[bytes, ...], body: bytes, whole: bool
) -> None:
    worker = says(*parts, cut=not whole, pause_s=0.02)
    async with warm(tmp_path, worker) as (here, wire):
        answer = await wire.ask(CHAT, PLAIN)
        assert (answer.body, answer.whole) == (body, whole)
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("before", [(), (b"HTTP/1.1 200 OK\r\ncontent-le",)])
async def test_a_client_that_leaves_stops_its_worker(tmp_path: Path, before: Any, how: str) -> None:
    slow = Slow(*before)
    async with warm(tmp_path, slow) as (here, wire):
        wire.request(CHAT, PLAIN)
        await slow.reached.wait()
        wire.reset() if how == "reset" else wire.close()
        await asyncio.wait_for(slow.left.wait(), 20)
        await eventually(lambda: here.pool.held == 0 and here.server.open_responses == 0)
        assert not here.pool.workers[0]._connections


async def test_a_thousand_that_leave_leak_nothing(tmp_path: Path) -> None:
    async with warm(tmp_path, says(b"HTTP/1.1 200 OK\r\n", b"content-length: 1\r\n\r\n", b"1")) as (here, _):

        async def leave(number: int) -> None:
            wire = await Wire.open(here.address)
            wire.request(CHAT, PLAIN)
            for _ in range(number % 25):
                await asyncio.sleep(0)
            wire.reset() if number % 2 else wire.close()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(leave(start + number) for number in range(50)))
        await eventually(lambda: here.server.connections == 1 and here.server.open_responses == 0)
        assert here.pool.held == 0
        upstream = here.pool.workers[0]
        await eventually(lambda: upstream._connections == set(upstream._idle))


async def test_the_end_of_the_server_waits_for_it_and_then_cuts_it(tmp_path: Path) -> None:
    slow = Slow()
    async with warm(tmp_path, slow) as (here, wire):
        wire.request(CHAT, PLAIN)
        await slow.reached.wait()
        assert await here.server.stop(grace_s=0.05) == 1
        assert await wire.closed() == b""
        await asyncio.wait_for(slow.left.wait(), 20)
        assert here.pool.held == 0 and here.server.open_responses == 0


async def test_a_fault_of_ours_is_a_500_and_gives_the_slot_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        """A witness."""

        def warned(self, warnings: tuple[str, ...]) -> None: ...
        def heard(self, data: bytes) -> None:
            raise ValueError("a bug")

        def ended(self) -> None: ...
        def cut(self, error: PublicError) -> bytes:
            return b""

        def refused(self, status: int, body: bytes) -> bytes:
            return b""

    async with warm(tmp_path, says_ok) as (here, _):

        def handle(exchange: Exchange) -> None:
            fields = {b"x-request-id": b"a"}
            request = Forwarded(
                exchange,
                None,  # type: ignore[arg-type]  # the pool has one worker
                Api.OPENAI,
                "POST",
                CHAT.encode(),
                fields,
                PLAIN,
                witness=Faulty(),
            )
            Relay(request, here.pool).begin(exchange.go_on)

        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server = HttpServer(handle, [listener], keep_alive_s=5)
        await server.start()
        async with connected(listener.getsockname()) as wire:
            assert (await wire.ask("/", PLAIN)).status == 500
        await server.stop(grace_s=1)
        assert here.pool.held == 0
        assert "the application failed" in caplog.text


async def test_many_that_are_answered_at_once_come_in_order(tmp_path: Path) -> None:
    """They don't call each other, however many one read brings."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for number in range(3000):
            wire.request("/health", headers=("Host: localhost", f"x-request-id: {number}"))
        for number in range(3000):
            answer = await wire.read()
            assert (answer.status, answer.headers["x-request-id"]) == (200, str(number))


async def test_answers_at_once_wait_for_a_client_that_does_not_read() -> None:
    begun = 0

    def handle(exchange: Exchange) -> None:
        nonlocal begun
        begun += 1
        exchange.answer(200, (), bytes(1 << 20))

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = HttpServer(handle, [listener], keep_alive_s=5)
    await server.start()
    async with connected(listener.getsockname()) as wire:
        # The reader stops at its own limit, and what the kernel takes is bounded too.
        for _ in range(MANY):
            wire.request("/")
        before = 0
        while begun != before or not begun:
            before = begun
            await asyncio.sleep(0.1)
        assert begun < MANY
        for _ in range(MANY):
            assert len((await wire.read()).body) == 1 << 20
        assert begun == MANY
    await server.stop(grace_s=1)

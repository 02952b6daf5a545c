"""The HTTP server and its clients: slow ones, idle ones, and every way to leave."""

import asyncio

import pytest

from supervisor.http.reader import Limits
from tests.fixtures.wire import Wire, connected
from tests.unit.front.http_app import GET, LOOPS, eventually, nobody_left, serving

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

# Time. Fault 28.

QUICK = Limits(head_s=0.2, body_window_s=0.2, body_rate_bytes_s=1000)


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
async def test_a_slow_head_is_cut(start: bytes) -> None:
    async with serving(limits=QUICK) as (app, address, _), connected(address) as wire:
        wire.send(start)

        async def dribble() -> None:
            while True:
                await asyncio.sleep(0.03)
                wire.send(b"a")

        dribbling = asyncio.create_task(dribble())
        answer = await asyncio.wait_for(wire.read(), 20)
        dribbling.cancel()
        assert (answer.status, app.calls) == (408, 0)


@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_a_slow_body_is_cut_and_nobody_waits_for_it(framing: str) -> None:
    async with serving(limits=QUICK) as (app, address, _), connected(address) as wire:
        wire.send(f"POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())

        async def dribble() -> None:
            while True:
                await asyncio.sleep(0.03)
                wire.send(b"1\r\na\r\n")

        dribbling = asyncio.create_task(dribble())
        answer = await asyncio.wait_for(wire.read(), 20)
        dribbling.cancel()
        assert answer.status == 408
        await eventually(lambda: app.gone == 1)


async def test_a_steady_body_may_take_its_time() -> None:
    limits = Limits(body_window_s=0.8, body_rate_bytes_s=250)
    async with serving(limits=limits) as (_, address, _), connected(address) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n")
        # For two windows, with as much in each piece as a window needs.
        for _ in range(20):
            wire.send(bytes(200))
            await asyncio.sleep(0.08)
        assert (await wire.read()).status == 200


async def test_a_slow_answer_is_nobodys_fault() -> None:
    async with serving(limits=QUICK, keep_alive_s=0.2) as (app, address, _), connected(address) as wire:
        wire.request("/wait", b"x")
        await asyncio.sleep(0.6)
        app.go.set()
        assert (await wire.read()).body == b"waited"


async def test_idle_connections_leave_and_busy_ones_stay() -> None:
    async with serving(keep_alive_s=1.0) as (_, address, server), connected(address) as wire:
        idle = await Wire.open(address)
        for _ in range(12):
            assert (await wire.ask("/")).status == 200
            await asyncio.sleep(0.1)
        assert await idle.closed() == b""
        assert await asyncio.wait_for(wire.closed(), 20) == b""
        await eventually(lambda: server.connections == 0)
        idle.close()


async def test_pipelining_without_end_is_not_a_slow_head() -> None:
    """Each read ends within a head, so that the connection is never between two requests."""
    async with serving(limits=Limits(head_s=1.0)) as (app, address, _), connected(address) as wire:
        app.go.set()
        wire.send(GET[:10])
        for _ in range(12):
            wire.send(GET[10:] + GET[:10])
            assert (await wire.read()).status == 200
            await asyncio.sleep(0.1)


# Clients that leave. Faults 25 and 26.


@pytest.mark.parametrize("path", ["/wait", "/receive", "/stream"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_is_noticed_at_once(path: str, how: str) -> None:
    async with serving() as (app, address, server):
        wire = await Wire.open(address)
        wire.request(path, b"{}")
        await app.entered.wait()
        if path == "/stream":
            await wire.reader.readuntil(b"data: 1")
        await asyncio.sleep(0.02)
        wire.close() if how == "close" else wire.reset()
        await asyncio.wait_for(app.left.wait(), 20)
        assert app.gone == 1
        await nobody_left(server)


async def test_a_client_that_leaves_within_its_request_is_noticed() -> None:
    for part in (b"POST /x HT", b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"):
        async with serving() as (_, address, server):
            wire = await Wire.open(address)
            wire.send(part)
            await asyncio.sleep(0.02)
            wire.close()
            await nobody_left(server)


@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_half_closed_client_gets_its_whole_answer(path: str) -> None:
    async with serving() as (app, address, _), connected(address) as wire:
        wire.request(path, b"{}")
        wire.writer.write_eof()
        await app.entered.wait()
        await asyncio.sleep(0.2)
        app.go.set()
        answer = await wire.read()
        assert answer.whole
        assert [line for line in answer.body.splitlines() if line and line != b":"] == (
            [b"waited"] if path == "/wait" else [b"data: 1", b"data: 2"]
        )
        assert app.gone == 0
        assert await asyncio.wait_for(wire.closed(), 20) == b""


async def test_a_reader_that_stalls_costs_little() -> None:
    """Fault 27."""
    async with serving() as (app, address, _):
        wire = await Wire.open(address)
        wire.request("/flood")
        before = 0
        while app.sent_bytes != before or not before:
            before = app.sent_bytes
            await asyncio.sleep(0.1)
        assert app.sent_bytes < 16 * 2**20  # what the kernel holds for loopback, and our 64 KiB
        wire.reset()
        await asyncio.wait_for(app.left.wait(), 20)
        assert app.gone == 1


async def test_a_thousand_disconnects_leave_nothing() -> None:
    async with serving() as (app, address, server):
        for _ in range(40):
            wires = await asyncio.gather(*(Wire.open(address) for _ in range(25)))
            before = app.calls
            for wire in wires:
                wire.request("/wait", b"{}")
            async with asyncio.timeout(20):
                while app.calls < before + 25:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.001)
            for wire in wires:
                wire.reset()
        await nobody_left(server)
        assert app.gone == 1000

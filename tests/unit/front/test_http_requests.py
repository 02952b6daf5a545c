"""What the HTTP server reads: order, limits, and whatever is no request."""

import asyncio
import contextlib
import json
import random

import pytest

from tests.fixtures.wire import Wire, connected
from tests.unit.front.http_app import GET, LOOPS, nobody_left, serving

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)


async def test_a_request_and_the_next_on_the_same_connection() -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        for number in range(3):
            answer = await wire.ask(f"/a%20b?n={number}", b"hello")
            seen = json.loads(answer.body)
            assert (answer.status, seen["path"], seen["query"], seen["body"]) == (
                200,
                "/a b",
                f"n={number}",
                "hello",
            )


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
async def test_a_request_in_any_pieces(size: int) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"3\r\nabc\r\n0\r\nX: y\r\n\r\n"
    async with serving() as (_, address, _), connected(address) as wire:
        for at in range(0, len(data), size):
            wire.send(data[at : at + size])
            await wire.writer.drain()
            await asyncio.sleep(0)
        seen = json.loads((await wire.read()).body)
        assert seen["body"] == "abc"
        # A trailer is not a header: it came after everything was decided.
        assert [name for name, _ in seen["headers"]] == ["host", "transfer-encoding"]


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Fault 32. The first is slow; the others wait for it."""
    async with serving() as (app, address, _), connected(address) as wire:
        wire.request("/wait")
        for number in range(20):
            wire.request(f"/{number}", b"body" * number)
        await app.entered.wait()
        await asyncio.sleep(0.02)
        assert app.calls == 1
        app.go.set()
        assert (await wire.read()).body == b"waited"
        for number in range(20):
            seen = json.loads((await wire.read()).body)
            assert (seen["path"], len(seen["body"])) == (f"/{number}", 4 * number)


async def test_a_pipelined_request_does_not_hide_the_disconnect() -> None:
    async with serving() as (app, address, _):
        wire = await Wire.open(address)
        wire.request("/wait")
        wire.request("/next")
        await app.entered.wait()
        wire.reset()
        await asyncio.wait_for(app.left.wait(), 20)
        assert (app.gone, app.calls) == (1, 1)


async def test_expect_continue_is_answered_once_and_when_the_body_is_wanted() -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with serving() as (_, address, _), connected(address) as wire:
        for _ in range(2):
            wire.send(head)
            assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            wire.send(b"abc")
            assert json.loads((await wire.read()).body)["body"] == "abc"
        wire.send(head + b"abc")
        assert json.loads((await wire.read()).body)["body"] == "abc"
        assert wire.interim == []


async def test_expect_continue_of_a_refused_request_gets_the_refusal_alone() -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        answer = await wire.ask(
            "/early", method="POST", headers=("Host: x", "Expect: 100-continue", "Content-Length: 3")
        )
        assert (answer.status, wire.interim, answer.headers["connection"]) == (413, [], "close")
        assert await wire.closed() == b""


async def test_a_refused_upload_sees_its_refusal() -> None:
    """Closing while the client still sends would reset the connection and throw the answer away."""
    async with serving() as (_, address, _), connected(address) as wire:
        wire.send(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + bytes(1_000_000))
        await wire.writer.drain()
        await asyncio.sleep(0.05)
        wire.send(bytes(1_000_000))
        await wire.writer.drain()
        assert (await wire.read()).status == 413


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\nHost: x\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: y\r\n z\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: y\0z\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nX: y\rz\r\n\r\n", 400),
        (b"POST /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST / a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nExpect: the-moon\r\n\r\n", 417),
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 400_000, 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    ],
)
@pytest.mark.parametrize("behind_another", [False, True])
async def test_what_is_not_a_request_gets_an_error_and_the_end(
    head: bytes, status: int, behind_another: bool
) -> None:
    """Faults 30 and 31."""
    async with serving() as (app, address, _), connected(address) as wire:
        if behind_another:
            wire.request("/wait")
        wire.send(head)
        if behind_another:
            await app.entered.wait()
            app.go.set()
            assert (await wire.read()).body == b"waited"
        answer = await wire.read()
        error = json.loads(answer.body)["error"]
        assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
        assert answer.headers["connection"] == "close"
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "server_error")
        assert await wire.closed() == b""


async def test_a_huge_header_costs_no_memory() -> None:
    """Fault 30: 32 MiB of one header. The refusal comes while most of it is still on its way."""
    async with serving() as (_, address, _), connected(address) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")

        async def pour() -> None:
            for _ in range(512):
                wire.send(b"y" * 65536)
                await wire.writer.drain()

        pouring = asyncio.create_task(pour())
        assert (await wire.read()).status == 431
        pouring.cancel()
        await asyncio.wait([pouring])


async def test_chunk_extensions_and_trailers_are_bounded() -> None:
    for filler in (b"1;" + b"x" * 1000 + b"\r\na\r\n", b"X: " + b"y" * 1000 + b"\r\n"):
        async with serving() as (_, address, _), connected(address) as wire:
            wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            if filler.startswith(b"X"):
                wire.send(b"0\r\n")
            for _ in range(400):
                wire.send(filler)
                await asyncio.sleep(0)
            assert (await wire.read()).status in (400, 431)


async def test_a_body_in_single_bytes_is_fine() -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.send(b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n")
        assert len(json.loads((await wire.read()).body)["body"]) == 100_000


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked", None])
@pytest.mark.parametrize("split", [False, True])
async def test_an_offered_upgrade_is_passed_over(framing: str | None, split: bool) -> None:
    """Java's HTTP client offers h2c with every first request; its body must arrive all the same."""
    lines = ["POST /x HTTP/1.1", "Host: x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"]
    body = {"Content-Length: 5": "hello", "Transfer-Encoding: chunked": "5\r\nhello\r\n0\r\n\r\n", None: ""}
    async with serving() as (_, address, _), connected(address) as wire:
        wire.send("\r\n".join([*lines, *([framing] if framing else []), "", ""]).encode())
        if split:
            await asyncio.sleep(0.02)
        wire.send(body[framing].encode() + GET)
        assert json.loads((await wire.read()).body)["body"] == ("hello" if framing else "")
        assert json.loads((await wire.read()).body)["method"] == "GET"


async def test_http_1_0_gets_a_plain_answer_and_the_end() -> None:
    async with serving() as (app, address, _), connected(address) as wire:
        app.go.set()
        wire.send(b"GET /stream HTTP/1.0\r\nHost: x\r\n\r\n")
        raw = await wire.closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == b"data: 1\n\ndata: 2\n\n"


async def test_head_has_no_body() -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        answer = await wire.ask("/", method="HEAD")
        assert answer.body == b""
        assert int(answer.headers["content-length"]) > 0
        assert (await wire.ask("/")).status == 200


# Anything at all.

SEEDS = [
    b"POST /x?y=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: u\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + GET,
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GET,
    GET * 12,
    b"HEAD http://u:p@h:1/%zz?%00#f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET,
]


@pytest.mark.parametrize("seed", range(20))
async def test_no_bytes_are_our_fault(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is sent, in whatever pieces: answers that h11 accepts, an end, and nothing in the log."""
    rng = random.Random(seed)
    async with serving() as (_, address, server):
        for _ in range(25):
            data = bytearray(rng.choice(SEEDS))
            for _ in range(rng.randrange(4)):
                at = rng.randrange(len(data))
                match rng.randrange(4):
                    case 0:
                        data[at] = rng.randrange(256)
                    case 1:
                        del data[at : at + rng.randrange(1, 9)]
                    case 2:
                        data[at:at] = rng.choice((b"\r", b"\n", b"\0", b" ", b"\r\n", b":", b"9" * 20))
                    case _:
                        data[at:at] = rng.choice(SEEDS)
            wire = await Wire.open(address)
            with contextlib.suppress(ConnectionError):
                at = 0
                while at < len(data):
                    size = rng.choice((1, 7, 1000, 1000))
                    wire.send(bytes(data[at : at + size]))
                    await wire.writer.drain()
                    at += size
                wire.writer.write_eof()
                while True:
                    answer = await asyncio.wait_for(wire.read(), 20)
                    assert answer.status in (200, 400, 408, 414, 417, 431, 501, 505)
            wire.close()
        await nobody_left(server)
    assert caplog.text == ""

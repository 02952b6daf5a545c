"""The HTTP server on real sockets: order, limits, time, and every way a client can leave."""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.sockets import bind_private
from supervisor.http.asgi import asgi
from supervisor.http.exchange import ClientGone, Exchange
from supervisor.http.reader import Limits
from supervisor.http.server import HttpServer
from tests.fixtures.wire import Wire, connected


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message["body"]
        more = message["more_body"]
    return body


async def reply(send: Any, body: bytes, status: int = 200, headers: Any = None) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers or length})
    await send({"type": "http.response.body", "body": body})


class App:
    """Echoes what it was asked; `/wait` answers when told to, `/stream` streams when told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.calls = 0
        self.gone = 0
        self.sent_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        self.entered.set()
        try:
            await self.route(scope["raw_path"], scope, receive, send)
        except ClientGone:
            self.gone += 1
        finally:
            self.left.set()

    async def route(self, path: bytes, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange.of(scope)
        if path == b"/early":
            await reply(send, b"no", 413)
        elif path == b"/raise":
            raise ValueError("a bug")
        elif path == b"/abort":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
            exchange.abort()
        elif path == b"/wait":
            await body_of(receive)
            with exchange.while_connected():
                await self.go.wait()
            await reply(send, b"waited")
        elif path == b"/receive":
            await body_of(receive)
            assert (await receive())["type"] == "http.disconnect"
            raise ClientGone
        elif path == b"/stream":
            await body_of(receive)
            with exchange.while_connected():
                kind = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": 200, "headers": kind})
                await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
                await self.go.wait()
            await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})
        elif path == b"/flood":
            with exchange.while_connected():
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
                    self.sent_bytes += 65536
        else:
            body = await body_of(receive)
            seen = {
                "method": scope["method"],
                "path": scope["path"],
                "query": scope["query_string"].decode(),
                "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]],
                "body": body.decode("latin-1"),
            }
            await reply(send, json.dumps(seen).encode())


@asynccontextmanager
async def serving(
    app: Any = None, limits: Limits | None = None, keep_alive_s: float = 30
) -> AsyncIterator[tuple[Any, tuple[str, int], HttpServer]]:
    app = app or App()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    server = HttpServer(asgi(app), [listener], keep_alive_s=keep_alive_s, limits=limits)
    await server.start()
    try:
        yield app, address, server
    finally:
        await server.stop(grace_s=0.1)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the server announces no event for what is asked here
            await asyncio.sleep(0.005)


async def nobody_left(server: HttpServer) -> None:
    await eventually(lambda: server.connections == 0 and server.open_responses == 0)


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
    async with serving(limits=QUICK) as (_, address, _), connected(address) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n")
        for _ in range(20):
            wire.send(bytes(200))
            await asyncio.sleep(0.03)
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
        before = -1
        while app.sent_bytes != before:
            before = app.sent_bytes
            await asyncio.sleep(0.1)
        assert 0 < app.sent_bytes < 16 * 2**20  # what the kernel holds for loopback, and our 64 KiB
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


# Applications that fail.


async def test_a_bug_before_the_answer_is_a_500_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        answer = await wire.ask("/raise")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "internal_error")
        assert b"ValueError" not in answer.body
        assert (await wire.ask("/")).status == 200
    assert "a bug" in caplog.text


async def test_an_aborted_answer_is_seen_to_be_cut() -> None:
    async with serving() as (_, address, _), connected(address) as wire:
        answer = await wire.ask("/abort")
        assert not answer.whole


@pytest.mark.parametrize(
    "misuse",
    [
        [{"type": "http.response.body", "body": b"x"}],
        [{"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\r\nc: d")]}],
    ],
)
async def test_misuse_is_a_500(misuse: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        for message in misuse:
            await send(message)

    async with serving(app) as (_, address, _), connected(address) as wire:
        assert (await wire.ask("/")).status == 500
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("body", [b"x", b"xyz"])
async def test_a_wrong_length_cuts_the_answer(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await reply(send, body, headers=[(b"content-length", b"2")])

    async with serving(app) as (_, address, _), connected(address) as wire:
        with contextlib.suppress(ConnectionError):  # when nothing of it had gone out yet
            assert not (await wire.ask("/")).whole
    assert "content-length" in caplog.text


# The end of the server.


async def test_stop_lets_answers_finish_and_closes_the_rest() -> None:
    async with serving() as (app, address, server):
        busy, idle = await Wire.open(address), await Wire.open(address)
        assert (await idle.ask("/")).status == 200
        busy.request("/wait", b"x")
        await eventually(lambda: app.calls == 2)
        stopping = asyncio.create_task(server.stop(grace_s=5))
        assert await idle.closed() == b""
        with pytest.raises(OSError):
            await Wire.open(address)
        app.go.set()
        answer = await busy.read()
        assert (answer.body, answer.headers["connection"]) == (b"waited", "close")
        assert await stopping == 0
        busy.close()
        idle.close()


async def test_stop_cuts_what_does_not_end() -> None:
    async with serving() as (_, address, server):
        wire = await Wire.open(address)
        wire.request("/stream", b"x")
        await wire.reader.readuntil(b"data: 1")
        assert await server.stop(grace_s=0.05) == 1
        assert b"data: 2" not in await wire.closed()
        wire.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = HttpServer(asgi(App()), [bind_private(path)], keep_alive_s=5)
    await server.start()
    async with connected(str(path)) as wire:
        assert (await wire.ask("/")).status == 200
    await server.stop(grace_s=1)


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

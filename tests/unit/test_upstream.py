"""The client over a worker's socket, against a server that says exactly the bytes it is told to."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisor.workers.connection import HIGH_WATER_BYTES
from supervisor.workers.upstream import Upstream, UpstreamError


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The product serves on uvloop; asyncio's own loop must do as well."""
    return "asyncio", {"use_uvloop": request.param}


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Accepts on a Unix socket and lets `handler` speak on each connection."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self.path = path
        self.accepted = 0
        self.heads: list[bytes] = []
        self.gone = asyncio.Event()
        self._handler = handler

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.gone.set()


@asynccontextmanager
async def serving(path: Path, handler: Handler) -> AsyncIterator[tuple[Server, Upstream]]:
    server = Server(path / "w.sock", handler)
    listener = await asyncio.start_unix_server(server.accept, server.path)
    upstream = Upstream(server.path)
    try:
        yield server, upstream
    finally:
        upstream.close()
        listener.close()


def answers(*parts: bytes, keep: bool = True, pause_s: float = 0.0) -> Handler:
    """For each request says `parts`; with `keep` false it closes after the first."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.split(b"\r\n"):
                if line.startswith(b"content-length: "):
                    await reader.readexactly(int(line.split()[1]))
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if not keep:
                return

    return handler


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ((OK,), b"ok"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",), b""),
        (
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                b"2\r\nab\r\n1\r\nc\r\n",
                b"0\r\n\r\n",
            ),
            b"abc",
        ),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-late: 1\r\n\r\n",), b"a"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",), b""),
        ((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx: y\r\n\r\n", OK), b"ok"),
    ],
)
async def test_an_orderly_answer_leaves_the_connection_usable(
    tmp_path: Path, parts: tuple[bytes, ...], body: bytes
) -> None:
    async with serving(tmp_path, answers(*parts)) as (server, upstream):
        for _ in range(3):
            async with await upstream.request("POST", b"/x", [(b"a", b"b")], b"{}") as response:
                assert await response.read() == body
        assert server.accepted == 1


async def test_interim_answers_leave_no_header_behind(tmp_path: Path) -> None:
    interim = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
    async with (
        serving(tmp_path, answers(interim, OK)) as (_, upstream),
        await upstream.request("GET", b"/x") as response,
    ):
        assert (response.status, response.headers) == (200, [(b"content-length", b"2")])
        await response.read()


async def test_an_answer_that_ends_with_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, answers(b"HTTP/1.1 200 OK\r\n\r\n", b"abc", keep=False)) as (
        server,
        upstream,
    ):
        for _ in range(2):
            async with await upstream.request("GET", b"/x") as response:
                assert await response.read() == b"abc"
        assert server.accepted == 2


async def test_head_has_no_body_whatever_its_length_says(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, answers(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n")) as (_, upstream),
        await upstream.request("HEAD", b"/x") as response,
    ):
        assert await response.read() == b""
        assert (b"content-length", b"50") in response.headers


async def test_the_request_goes_out_whole(tmp_path: Path) -> None:
    body = random.Random(1).randbytes(3_000_000)
    seen = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.set_result((head, await reader.readexactly(len(body))))
        writer.write(OK)

    async with (
        serving(tmp_path, handler) as (_, upstream),
        await upstream.request("POST", b"/v1/x?y=z", [(b"accept", b"*/*")], body) as response,
    ):
        assert await response.read() == b"ok"
    assert await seen == (
        b"POST /v1/x?y=z HTTP/1.1\r\nhost: worker\r\naccept: */*\r\ncontent-length: 3000000\r\n\r\n",
        body,
    )


@pytest.mark.parametrize("seed", range(20))
async def test_any_split_of_the_wire_gives_the_same_body(tmp_path: Path, seed: int) -> None:
    """Chunk borders on the wire and borders of reads have nothing to do with each other."""
    rng = random.Random(seed)
    body = rng.randbytes(rng.randrange(1, 60_000))
    wire = bytearray(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    at = 0
    while at < len(body):
        piece = body[at : at + rng.randrange(1, 5000)]
        wire += b"%x\r\n%b\r\n" % (len(piece), piece)
        at += len(piece)
    wire += b"0\r\n\r\n"
    parts, at = [], 0
    while at < len(wire):
        size = rng.choice((1, 2, 3, 100, 4096))
        parts.append(bytes(wire[at : at + size]))
        at += size
    async with serving(tmp_path, answers(*parts)) as (server, upstream):
        for _ in range(2):
            async with await upstream.request("GET", b"/x") as response:
                assert await response.read() == body
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("wire", "began"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n", True),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, False),
        (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", True),
    ],
)
async def test_a_cut_or_broken_answer_is_an_error(tmp_path: Path, wire: bytes, began: bool) -> None:
    async with serving(tmp_path, answers(wire, keep=False)) as (_, upstream):
        with pytest.raises(UpstreamError) as caught:
            async with await upstream.request("GET", b"/x") as response:
                await response.read()
        assert caught.value.began is began


async def test_what_came_before_the_cut_is_given_first(tmp_path: Path) -> None:
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"
    async with (
        serving(tmp_path, answers(wire, keep=False)) as (server, upstream),
        await upstream.request("GET", b"/x") as response,
    ):
        await server.gone.wait()
        await asyncio.sleep(0)
        assert await anext(response) == b"ab"
        with pytest.raises(UpstreamError):
            await anext(response)


async def test_no_listener_and_no_socket(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError) as caught:
        await Upstream(tmp_path / "none.sock").request("GET", b"/x")
    assert not caught.value.began
    assert not caught.value.connected


async def test_leaving_early_closes_the_connection(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        assert await reader.read() == b""

    async with serving(tmp_path, handler) as (server, upstream):
        async with await upstream.request("GET", b"/x") as response:
            assert await anext(response) == b"a"
        await asyncio.wait_for(server.gone.wait(), 20)


@pytest.mark.parametrize("phase", ["head", "body"])
async def test_cancelling_closes_the_connection(tmp_path: Path, phase: str) -> None:
    waiting = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if phase == "body":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        waiting.set()
        assert await reader.read() == b""

    async with serving(tmp_path, handler) as (server, upstream):

        async def ask() -> None:
            async with await upstream.request("GET", b"/x") as response:
                await response.read()

        task = asyncio.create_task(ask())
        await waiting.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 20)


async def test_a_cancelled_request_does_not_hurt_the_next_one(tmp_path: Path) -> None:
    """The answer was whole and its connection already carried another request when the cancel arrived."""
    async with serving(tmp_path, answers(OK)) as (_server, upstream):

        async def ask() -> bytes:
            async with await upstream.request("GET", b"/x") as response:
                return await response.read()

        rng = random.Random(2)
        for _ in range(200):
            first = asyncio.create_task(ask())
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            second = asyncio.create_task(ask())
            first.cancel()
            await asyncio.wait([first])
            assert await second == b"ok"


async def test_a_closed_idle_connection_is_not_used_again(tmp_path: Path) -> None:
    """The end of the connection is in the kernel, and the loop has not run since: asked for at checkout."""
    async with serving(tmp_path, answers(OK)) as (server, upstream):
        writers: list[asyncio.StreamWriter] = []
        plain = server._handler

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await plain(reader, writer)

        server._handler = handler
        for _ in range(5):
            async with await upstream.request("POST", b"/x") as response:
                assert await response.read() == b"ok"
            writers[-1].transport.abort()
            # asyncio closes the descriptor in its next round; ours must not be used in that same round.
            await asyncio.sleep(0)
        assert server.accepted == 5


async def test_idle_connections_leave_in_time(tmp_path: Path) -> None:
    async with serving(tmp_path, answers(OK)) as (server, _):
        upstream = Upstream(server.path, idle_s=0.05)
        async with await upstream.request("GET", b"/x") as response:
            await response.read()
        await asyncio.wait_for(server.gone.wait(), 20)
        async with await upstream.request("GET", b"/x") as response:
            await response.read()
        assert server.accepted == 2
        upstream.close()


async def test_unasked_words_end_an_idle_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, answers(OK + OK)) as (_, upstream):
        with pytest.raises(UpstreamError):
            async with await upstream.request("GET", b"/x") as response:
                await response.read()


async def test_a_slow_consumer_holds_the_worker_back(tmp_path: Path) -> None:
    """Fault 27: what a stalled client costs is bounded, however much the worker has to say."""
    total, sent = 64 * 1024 * 1024, 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(65536))
            sent += 65536
            await writer.drain()

    async with (
        serving(tmp_path, handler) as (_, upstream),
        await upstream.request("GET", b"/x") as response,
    ):
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 2 * 1024 * 1024
        assert response._buffered_bytes <= HIGH_WATER_BYTES + 256 * 1024
        got = 0
        async for chunk in response:
            got += len(chunk)
        assert got == total


async def test_close_ends_open_answers_and_refuses_new_ones(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await reader.read()

    async with serving(tmp_path, handler) as (server, upstream):
        async with await upstream.request("GET", b"/x") as response:
            upstream.close()
            with pytest.raises(UpstreamError):
                await response.read()
        with pytest.raises(UpstreamError) as caught:
            await upstream.request("GET", b"/x")
        assert not caught.value.connected
        await asyncio.wait_for(server.gone.wait(), 20)


async def test_many_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, answers(OK)) as (server, upstream):

        async def ask() -> None:
            for _ in range(20):
                async with await upstream.request("POST", b"/x", body=b"{}") as response:
                    assert await response.read() == b"ok"

        await asyncio.gather(*(ask() for _ in range(50)))
        assert server.accepted <= 50


# Piping.


@pytest.mark.parametrize("seed", range(10))
async def test_a_pipe_gives_every_byte_in_order(tmp_path: Path, seed: int) -> None:
    """Whatever part of it has come before, and however often the sink asks to wait."""
    rng = random.Random(seed)
    body = rng.randbytes(rng.randrange(1, 400_000))
    parts = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)]
    at = 0
    while at < len(body):
        size = rng.choice((1, 100, 10_000, 100_000))
        parts.append(body[at : at + size])
        at += size
    got = bytearray()
    loop = asyncio.get_running_loop()

    def sink(piece: bytes) -> asyncio.Future[None] | None:
        got.extend(piece)
        if rng.random() < 0.5:
            return None
        pending: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.001, pending.set_result, None)
        return pending

    async with serving(tmp_path, answers(*parts)) as (server, upstream):
        for _ in range(2):
            got.clear()
            async with await upstream.request("GET", b"/x") as response:
                if rng.random() < 0.5:
                    got.extend(await anext(response))
                await response.pipe(sink)
            assert got == body
        assert server.accepted == 1


async def test_a_pipe_ends_with_the_cut_when_all_was_given(tmp_path: Path) -> None:
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"
    loop = asyncio.get_running_loop()
    got = []

    def sink(piece: bytes) -> asyncio.Future[None]:
        got.append(piece)
        pending: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.05, pending.set_result, None)
        return pending

    handler = answers(wire, b"1\r\nc\r\n", keep=False, pause_s=0.02)
    async with serving(tmp_path, handler) as (_, upstream), await upstream.request("GET", b"/x") as response:
        with pytest.raises(UpstreamError) as caught:
            await response.pipe(sink)
        assert caught.value.began
        assert b"".join(got) == b"abc"


async def test_a_sink_that_fails_ends_the_pipe(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(b"1\r\na\r\n")
        assert await reader.read() == b""

    def sink(piece: bytes) -> None:
        raise ValueError(piece)

    async with serving(tmp_path, handler) as (server, upstream):
        async with await upstream.request("GET", b"/x") as response:
            with pytest.raises(ValueError, match="a"):
                await response.pipe(sink)
        await asyncio.wait_for(server.gone.wait(), 20)


async def test_a_sink_that_waits_holds_the_worker_back(tmp_path: Path) -> None:
    total, sent = 64 * 1024 * 1024, 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(bytes(65536))
            sent += 65536
            await writer.drain()

    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    got = 0

    def sink(piece: bytes) -> asyncio.Future[None] | None:
        nonlocal got
        got += len(piece)
        return None if gate.done() else gate

    async with (
        serving(tmp_path, handler) as (_, upstream),
        await upstream.request("GET", b"/x") as response,
    ):
        piping = asyncio.create_task(response.pipe(sink))
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 2 * 1024 * 1024
        gate.set_result(None)
        await piping
        assert got == total

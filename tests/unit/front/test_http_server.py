"""The HTTP server and its application: what it does wrong, and how the server ends."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shared.sockets import bind_private
from supervisor.http.asgi import asgi
from supervisor.http.server import HttpServer
from tests.fixtures.wire import Wire, connected
from tests.unit.front.http_app import LOOPS, App, eventually, reply, serving

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

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

"""Signs of life for streams on which nothing comes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PublicError
from supervisor.pings import ping_for
from supervisor.settings import ServerSettings
from tests.fixtures.wire import Wire, connected
from tests.unit.front.doubles import END, EVENTS, Supervised, Worker, chunk, says, says_ok, supervised

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
ASKED = b'{"model": "fake", "stream": true}'
OFTEN = ServerSettings(ping_s=0.06)
REFUSED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n",
    b'{"error":"no"}',
)


@asynccontextmanager
async def asking(
    folder: Path, target: str, *workers: Worker, body: bytes = ASKED, server: ServerSettings = OFTEN
) -> AsyncIterator[tuple[Supervised, Wire]]:
    """A request whose model is not there before the gate is opened."""
    async with supervised(folder, *workers, server=server) as here, connected(here.address) as wire:
        here.pool.gate = asyncio.Event()
        wire.request(target, body)
        yield here, wire


async def past_pings(wire: Wire, ping: bytes, count: int = 2) -> bytes:
    """Read until so many pings have come; whatever came."""
    seen = b""
    async with asyncio.timeout(20):
        while seen.count(ping) < count:
            seen += await wire.reader.read(65536)
    return seen


@pytest.mark.parametrize(("target", "ping"), [(CHAT, b": ping\n\n"), (MESSAGES, b'{"type":"ping"}\n\n')])
async def test_a_stream_is_alive_while_its_model_loads(tmp_path: Path, target: str, ping: bytes) -> None:
    worker = says(EVENTS, chunk(b"data: 1\n\n"), END)
    async with asking(tmp_path, target, worker) as (here, wire):
        head = await past_pings(wire, ping)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        for header in (
            b"content-type: text/event-stream; charset=utf-8",
            b"cache-control: no-cache, no-transform",
            b"x-accel-buffering: no",
            b"x-request-id: req_",
        ):
            assert header in head
        assert here.pool.gate is not None
        here.pool.gate.set()
        rest = b""
        while not rest.endswith(END):
            rest += await wire.reader.read(65536)
        assert rest.count(b"HTTP/1.1") == 0 and rest.count(b"data: 1\n\n") == 1


async def test_a_warning_that_comes_after_pings_is_a_comment(tmp_path: Path) -> None:
    """Its header was lost: the answer had begun without it."""
    warned = EVENTS.replace(b"\r\n\r\n", b'\r\nwarning: 299 - "left out: x"\r\n\r\n')
    comment = b': warning: 299 - "left out: x"\n\n'
    worker = says(warned, chunk(b"data: 1\n\n"), END)
    async with asking(tmp_path, CHAT, worker) as (here, wire):
        head = await past_pings(wire, b": ping")
        assert here.pool.gate is not None
        here.pool.gate.set()
        rest = b""
        while not rest.endswith(END):
            rest += await wire.reader.read(65536)
        assert b"warning" not in head and rest.count(comment) == 1
        assert rest.index(comment) < rest.index(b"data: 1\n\n")
    (tmp_path / "in time").mkdir()
    async with supervised(tmp_path / "in time", worker) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, ASKED)
        assert answer.headers["warning"] == '299 - "left out: x"' and comment not in answer.body
        name = answer.headers["x-request-id"]
        line = json.loads((await wire.ask(f"/stats?request={name}", method="GET")).body)
        assert line["warnings"] == ['299 - "left out: x"']


@pytest.mark.parametrize(
    ("target", "name"), [(CHAT, b"data: "), (MESSAGES, b"event: error\ndata: ")], ids=["chat", "messages"]
)
async def test_a_refusal_after_pings_is_the_last_event(tmp_path: Path, target: str, name: bytes) -> None:
    async with asking(tmp_path, target, says(*REFUSED)) as (here, wire):
        await past_pings(wire, b"ping")
        assert here.pool.gate is not None
        here.pool.gate.set()
        rest = b""
        while not rest.endswith(END):
            rest += await wire.reader.read(65536)
        assert name + b'{"error":"no"}\n\n' in rest


async def test_a_refusal_of_the_pool_after_pings_is_the_last_event(tmp_path: Path) -> None:
    async with asking(tmp_path, CHAT, says_ok) as (here, wire):
        await past_pings(wire, b": ping")
        here.pool.refusal = PublicError(507, "does_not_fit", "It does not fit.")
        assert here.pool.gate is not None
        here.pool.gate.set()
        rest = b""
        while not rest.endswith(END):
            rest += await wire.reader.read(65536)
        data = next(line for line in rest.split(b"\n") if line.startswith(b"data: "))
        assert json.loads(data.removeprefix(b"data: "))["error"]["code"] == "does_not_fit"


async def test_a_worker_that_dies_after_pings_is_still_replaced(tmp_path: Path) -> None:
    workers = (says(cut=True), says(EVENTS, chunk(b"data: 1\n\n"), END))
    async with asking(tmp_path, CHAT, *workers) as (here, wire):
        await past_pings(wire, b": ping")
        assert here.pool.gate is not None
        here.pool.gate.set()
        rest = b""
        while not rest.endswith(END):
            rest += await wire.reader.read(65536)
        assert b"data: 1\n\n" in rest and b"error" not in rest
        assert here.pool.taken == 2


async def test_silence_within_a_stream_is_bridged_between_events_only(tmp_path: Path) -> None:
    parts = (EVENTS, chunk(b"data: 1\n\n"), chunk(b"data: 2\n"), chunk(b"\n"), END)
    async with (
        supervised(tmp_path, says(*parts, pause_s=0.2), server=OFTEN) as here,
        connected(here.address) as wire,
    ):
        answer = await wire.ask(CHAT, ASKED)
        events = answer.body.split(b"\n\n")
        assert events.count(b": ping") >= 3
        assert [event for event in events if event and event != b": ping"] == [b"data: 1", b"data: 2"]


async def test_a_stream_that_flows_gets_none(tmp_path: Path) -> None:
    parts = [chunk(b"data: %d\n\n" % number) for number in range(12)]
    worker = says(EVENTS, *parts, END, pause_s=0.1)
    slow = ServerSettings(ping_s=0.8)
    async with supervised(tmp_path, worker, server=slow) as here, connected(here.address) as wire:
        assert b"ping" not in (await wire.ask(CHAT, ASKED)).body


@pytest.mark.parametrize(
    ("body", "server"),
    [
        (b'{"model": "fake"}', OFTEN),
        (b'{"model": "fake", "stream": false}', OFTEN),
        (ASKED, ServerSettings(ping_s=float("inf"))),
    ],
    ids=["no stream", "stream is false", "never"],
)
async def test_an_answer_of_json_keeps_its_status(
    tmp_path: Path, body: bytes, server: ServerSettings
) -> None:
    async with asking(tmp_path, CHAT, says(*REFUSED), body=body, server=server) as (here, wire):
        await asyncio.sleep(0.2)  # longer than pings would take
        assert here.pool.gate is not None
        here.pool.gate.set()
        answer = await wire.read()
        assert (answer.status, answer.body) == (400, b'{"error":"no"}')


def test_what_a_ping_is() -> None:
    def data(target: bytes, kind: Any) -> bytes:
        ping = ping_for(target, "m", ServerSettings(ping_kind=kind))
        assert ping is not None and ping.interval_s == 15
        return ping.data

    assert data(b"/v1/messages", "comment") == data(b"/v1/responses", "event") == b": ping\n\n"
    assert data(b"/v1/messages", "auto").startswith(b"event: ping\n")
    chunked = json.loads(data(b"/v1/chat/completions", "event").removeprefix(b"data: "))
    assert (chunked["object"], chunked["choices"], chunked["model"]) == ("chat.completion.chunk", [], "m")
    assert ping_for(b"/v1/embeddings", "m", ServerSettings()) is None

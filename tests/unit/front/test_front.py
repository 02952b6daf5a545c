"""The front before workers of the tests' own: a request's way, and bodies."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from supervisor.settings import ServerSettings
from tests.fixtures.wire import connected
from tests.unit.front.asking import BODY, CHAT, error_of
from tests.unit.front.doubles import (
    END,
    EVENTS,
    Supervised,
    chunk,
    says,
    says_ok,
    supervised,
)
from tests.unit.front.http_app import LOOPS

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

# Forwarding.


async def test_the_head_is_rebuilt_and_the_body_is_untouched(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        headers = (
            "Host: localhost:8080",
            "Content-Type: application/json; charset=utf-8",
            "Accept: text/event-stream",
            "X-Request-Id: abc",
            "traceparent: 00-1-2-01",
            "Authorization: Bearer secret",
            "X-Api-Key: secret",
            "Cookie: a=b",
            "X-Forwarded-For: 6.6.6.6",
            "X-Forwarded-Host: evil.example",
            "X-Original-URL: /admin/lease",
            "X-Rewrite-URL: /admin/lease",
            "Forwarded: for=6.6.6.6",
            "Connection: X-Request-Id",
            "TE: trailers",
            "Accept-Encoding: gzip",
        )
        answer = await wire.ask(f"{CHAT}?x=/admin/lease", BODY, headers=headers)
        assert (answer.status, answer.body) == (200, b"{}")
        assert answer.headers["content-length"] == "2"
        head, _, body = here.requests[0].partition(b"\r\n\r\n")
        assert body == BODY
        assert head.split(b"\r\n") == [
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: worker",
            b"content-type: application/json; charset=utf-8",
            b"accept: text/event-stream",
            b"x-request-id: abc",
            b"traceparent: 00-1-2-01",
            b"content-length: %d" % len(BODY),
        ]


@pytest.mark.parametrize("seed", range(10))
async def test_bytes_go_through_as_they_are(tmp_path: Path, seed: int) -> None:
    """However the request, the answer and its events are cut into pieces on their ways."""
    rng = random.Random(seed)
    text = rng.randbytes(rng.randrange(200_000)).hex()
    sent = json.dumps({"model": "fake", "x": text}).encode()
    events = b"".join(
        b"data: " + rng.randbytes(rng.randrange(300)).hex().encode() + b"\n\n"
        for _ in range(rng.randrange(300))
    )
    if rng.random() < 0.3:
        events += b"data: an end without its line"
    wire_bytes, at = bytearray(EVENTS), 0
    while at < len(events):
        size = rng.choice((1, 10, 1000, 70_000))
        wire_bytes += chunk(events[at : at + size])
        at += size
    wire_bytes += END
    parts, at = [], 0
    while at < len(wire_bytes):
        size = rng.choice((1, 50, 5000, 100_000))
        parts.append(bytes(wire_bytes[at : at + size]))
        at += size
    async with supervised(tmp_path, says(*parts)) as here, connected(here.address) as wire:
        for _ in range(2):
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            wire.send(head.encode())
            at = 0
            while at < len(sent):
                size = rng.randrange(1, 50_000)
                wire.send(chunk(sent[at : at + size]))
                await wire.writer.drain()
                at += size
            wire.send(END)
            answer = await wire.read()
            assert answer.whole
            assert answer.body == events
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert here.requests[0].endswith(b"\r\n\r\n" + sent)
        assert here.pool.held == 0


async def test_events_come_one_by_one(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def worker(_: asyncio.StreamReader, writer: asyncio.StreamWriter, _request: bytes) -> None:
        writer.write(EVENTS)
        await go.wait()
        for number in range(3):
            go.clear()
            writer.write(chunk(b"data: %d\n\n" % number))
            await go.wait()
        writer.write(END)

    async with supervised(tmp_path, worker) as here, connected(here.address) as wire:
        wire.request(CHAT, BODY)
        async with asyncio.timeout(20):
            await wire.reader.readuntil(b"\r\n\r\n")  # the head does not wait for an event
            go.set()
            for number in range(3):
                await wire.reader.readuntil(b"data: %d\n\n\r\n" % number)
                go.set()


async def test_errors_of_a_worker_go_through(tmp_path: Path) -> None:
    worker = says(b"HTTP/1.1 429 Too Many\r\nretry-after: 3\r\nx-a: b\r\ncontent-length: 2\r\n\r\nno")
    async with supervised(tmp_path, worker) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, BODY)
        assert (answer.status, answer.body) == (429, b"no")
        assert (answer.headers["retry-after"], answer.headers["x-a"]) == ("3", "b")


@pytest.mark.parametrize("name", ["fake", "alias", "org/fake"])
async def test_names_that_are_known(tmp_path: Path, name: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        assert (await wire.ask(CHAT, json.dumps({"model": name}).encode())).status == 200


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "%2e%2e%2fetc%2fpasswd",
        "fake\0",
        "",
        "x" * 1_000_000,
        "..",
        "org/../fake",
    ],
)
async def test_names_that_are_paths_or_worse_are_unknown(tmp_path: Path, name: str) -> None:
    """Fault 35."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, json.dumps({"model": name}).encode())
        error = error_of(answer)
        assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert len(error["message"]) < 500
        assert here.pool.taken == 0


# Time on both hops. Fault 33, with times a hundredth of the real ones.


async def test_connections_are_reused_after_idling_on_both_hops(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok, keep_alive_s=5, worker_idle_s=0.6) as here:
        async with connected(here.address) as wire:
            for idle_s in (0.0, 0.06, 0.31, 0.8):
                await asyncio.sleep(idle_s)
                assert (await wire.ask(CHAT, BODY)).status == 200
        assert here.pool.taken == 4  # none was tried twice


# Bodies.


async def test_a_body_over_the_cap_is_refused_before_it_is_read(tmp_path: Path) -> None:
    small = ServerSettings(max_body_bytes=2048)
    async with supervised(tmp_path, says_ok, server=small) as here, connected(here.address) as wire:
        wire.request(CHAT, headers=("Host: localhost", "Content-Length: 2049"), method="POST")
        answer = await wire.read()
        assert (answer.status, error_of(answer)["code"]) == (413, "body_too_large")
        assert answer.headers["connection"] == "close"


async def test_a_chunked_body_is_refused_at_the_cap(tmp_path: Path) -> None:
    small = ServerSettings(max_body_bytes=2048)
    async with supervised(tmp_path, says_ok, server=small) as here, connected(here.address) as wire:
        wire.request(CHAT, headers=("Host: localhost", "Transfer-Encoding: chunked"), method="POST")
        wire.send(chunk(b"x" * 2049))
        assert (await wire.read()).status == 413


async def test_a_body_of_exactly_the_cap_is_fine(tmp_path: Path) -> None:
    small = ServerSettings(max_body_bytes=2048)
    body = b'{"model":"fake","x":"' + b"x" * 2025 + b'"}'
    assert len(body) == 2048
    async with supervised(tmp_path, says_ok, server=small) as here, connected(here.address) as wire:
        assert (await wire.ask(CHAT, body)).status == 200


async def test_bad_bodies_are_named(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for body, param in ((b"{", None), (b"{}", "model"), (b'{"model":"fake","stream":3}', "stream")):
            answer = await wire.ask(CHAT, body)
            assert (answer.status, error_of(answer)["param"]) == (400, param)
        assert (await wire.ask(CHAT, BODY)).status == 200


async def test_expect_continue(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        headers = ("Host: localhost", "Expect: 100-continue", f"Content-Length: {len(BODY)}")
        wire.request(CHAT, headers=headers, method="POST")
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(BODY)
        assert (await wire.read()).status == 200


async def test_pipelined_requests(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for _ in range(3):
            wire.request("/health")
            wire.request(CHAT, BODY)
            wire.request("/nothing", b"{}")
        statuses = [(await wire.read()).status for _ in range(9)]
        assert statuses == [200, 200, 404] * 3


async def test_many_requests_at_once(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here:

        async def ask(here: Supervised) -> None:
            async with connected(here.address) as wire:
                for _ in range(10):
                    assert (await wire.ask(CHAT, BODY)).status == 200

        await asyncio.gather(*(ask(here) for _ in range(50)))
        assert here.pool.taken == 500


async def test_a_second_request_never_reaches_the_worker_inside_the_first(tmp_path: Path) -> None:
    """Smuggling: what a body looks like is the body's business."""
    hidden = b"\r\n\r\nPOST /admin/drain HTTP/1.1\r\nhost: worker\r\ncontent-length: 2\r\n\r\n{}"
    body = (
        b'{"model":"fake","x":"' + hidden.replace(b"\r\n", b"\\r\\n") + b'"}' + hidden.replace(b"{}", b"  ")
    )
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(CHAT, body)
        assert answer.status == 400
        assert here.requests == []

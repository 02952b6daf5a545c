"""The public listener over real sockets: dispatch, forwarding, and what becomes of a worker that dies."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PublicError
from supervisor.http.reader import Limits
from supervisor.settings import ServerSettings
from tests.fixtures.wire import Answer, Wire, connected
from tests.unit.front.doubles import (
    END,
    EVENTS,
    Supervised,
    chunk,
    says,
    says_ok,
    supervised,
)

CHAT = "/v1/chat/completions"
BODY = b'{"model": "fake",  "messages": [{"role":"user","content":"\xc3\xa4"}], "stream": true}'


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # nobody announces what is asked here
            await asyncio.sleep(0.005)


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
        assert not here.pool.workers[0]._busy


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
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 16 * 2**20  # what the kernel holds for loopback, and our buffers
        wire.reset()
        await eventually(lambda: here.pool.held == 0)


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


# Dispatch.

WORKER_ROUTES = ["health", "lease", "drain", "memory", "memory/trim", "memory/complete", "events", "adapters"]
SPELLINGS = [
    "/admin/{}",
    "//admin/{}",
    "///admin/{}",
    "/admin//{}",
    "/%61dmin/{}",
    "/%2561dmin/{}",
    "/ADMIN/{}",
    "/admin/{}/",
    "/admin/{};x",
    "/v1/../admin/{}",
    "/v1/%2e%2e/admin/{}",
    "/v1/models/../../admin/{}",
    "/v1/chat/completions/../../../admin/{}",
    "/v1/chat/completions/../admin/{}",
    "/./admin/{}",
    "/admin/./{}",
    "http://localhost/admin/{}",
    "http://worker/admin/{}",
    "/api/admin/{}",
    "/v1/admin/{}",
    "/\\admin/{}",
    "/v1%2f..%2fadmin/{}",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_worker_routes_are_nowhere(tmp_path: Path, method: str) -> None:
    """Fault 37."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for spelling in SPELLINGS:
            for route in WORKER_ROUTES:
                target = spelling.format(route)
                answer = await wire.ask(target, b"{}" if method == "POST" else b"", method)
                allowed = (404, 405) if target.startswith("/v1/models/") else (404,)
                assert answer.status in allowed, target
                assert error_of(answer)["code"] in ("not_found", "model_not_found", "method_not_allowed")
        for header in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Path", "X-Accel-Redirect"):
            headers = ("Host: localhost", f"{header}: /admin/lease")
            assert (await wire.ask("/nothing", headers=headers)).status == 404
            await wire.ask(CHAT, BODY, headers=headers)
        assert all(b"admin" not in request for request in here.requests)


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/engine", "GET, HEAD"),
        ("GET", "/api/stop", "POST"),
        ("GET", "/api/models/fake/load", "POST"),
    ],
)
async def test_wrong_methods(tmp_path: Path, method: str, target: str, allow: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(target, method=method)
        assert (answer.status, error_of(answer)["code"]) == (405, "method_not_allowed")
        assert sorted(answer.headers["allow"].split(", ")) == sorted(allow.split(", "))
        assert not here.stopped.is_set()
        assert here.pool.loaded == []


@pytest.mark.parametrize(
    "target", ["/", "/v2", f"{CHAT}/", f"/{CHAT}", "/V1/chat/completions", "/docs", "/openapi.json", "*"]
)
async def test_unknown_paths(tmp_path: Path, target: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for body in (b"", BODY):
            answer = await wire.ask(target, body)
            assert (answer.status, error_of(answer)["code"]) == (404, "not_found")
        assert here.pool.taken == 0


ASKED = b'{"model": "fake", "max_tokens": 1, "messages": []}'


@pytest.mark.parametrize(
    ("target", "method", "body", "headers", "status", "kind"),
    [
        ("/v1/messages", "", b"{}", (), 400, "invalid_request_error"),
        ("/v1/messages", "", b"{", (), 400, "invalid_request_error"),
        ("/v1/messages", "", b'{"model": "gone"}', (), 404, "not_found_error"),
        ("/v1/messages?beta=true", "", b'{"model": "gone"}', (), 404, "not_found_error"),
        ("/v1/messages/count_tokens", "", b'{"model": 3}', (), 400, "invalid_request_error"),
        ("/v1/messages/batches", "", ASKED, (), 404, "not_found_error"),
        ("/v1/messages", "GET", b"", (), 405, "invalid_request_error"),
        ("/v1/messages", "", ASKED, ("Origin: https://evil.example",), 403, "permission_error"),
        ("/v1/messages", "", ASKED, ("Host: localhost",), 400, "invalid_request_error"),
        ("/v1/messages", "", b'{"x":"%b"}' % (b"y" * 2000), (), 413, "request_too_large"),
        ("/v1/models/gone", "", b"", ("anthropic-version: 2023-06-01",), 404, "not_found_error"),
        ("/v1/models", "POST", b"", ("anthropic-version: 2023-06-01",), 405, "invalid_request_error"),
    ],
)
async def test_refusals_have_the_shape_of_the_api_that_was_asked(
    tmp_path: Path, target: str, method: str, body: bytes, headers: tuple[str, ...], status: int, kind: str
) -> None:
    small = ServerSettings(max_body_bytes=1024)
    async with supervised(tmp_path, says_ok, server=small) as here, connected(here.address) as wire:
        answer = await wire.ask(target, body, method, ("Host: localhost", "X-Request-Id: mine", *headers))
        told = json.loads(answer.body)
        assert (answer.status, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert told["error"]["message"]
        assert (told["request_id"], answer.headers["request-id"]) == ("mine", "mine")
        assert status != 405 or answer.headers["allow"]


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "rate_limit_error"), (502, "api_error"), (507, "api_error")]
)
async def test_refusals_of_the_pool_have_its_shape_too(tmp_path: Path, status: int, kind: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.refusal = PublicError(status, "because", "For a reason.", retry_after_s=3)
        answer = await wire.ask("/v1/messages", ASKED)
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (status, kind)
        assert answer.headers["retry-after"] == "3"


async def test_a_death_within_a_stream_of_messages_is_its_error_event(tmp_path: Path) -> None:
    begun = chunk(b'event: ping\ndata: {"type":"ping"}\n\n')
    async with (
        supervised(tmp_path, says(EVENTS, begun, cut=True)) as here,
        connected(here.address) as wire,
    ):
        answer = await wire.ask("/v1/messages?beta=true", ASKED)
        assert answer.whole and answer.body.startswith(b"event: ping")
        name, data = answer.body.decode().rstrip().split("\n\n")[-1].split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == "event: error" and told["type"] == "error"
        assert told["error"]["type"] == "api_error"
        assert told["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("target", [CHAT, "/v1/models", "/health", "/nowhere"])
async def test_every_answer_tells_what_the_request_is_called(tmp_path: Path, target: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        body = BODY if target == CHAT else b""
        fresh = [(await wire.ask(target, body)).headers["x-request-id"] for _ in range(2)]
        assert fresh[0] != fresh[1] and all(name.startswith("req_") for name in fresh)
        named = await wire.ask(target, body, headers=("Host: localhost", "X-Request-Id: my-id.1"))
        assert named.headers["x-request-id"] == "my-id.1"
        odd = await wire.ask(target, body, headers=("Host: localhost", f"X-Request-Id: {'a' * 200}"))
        assert odd.headers["x-request-id"].startswith("req_")
        if target == CHAT:
            assert b"x-request-id: my-id.1\r\n" in here.requests[2]
            assert b"x-request-id: req_" in here.requests[3]


async def test_somebody_is_there(tmp_path: Path) -> None:
    """Claude Code looks for a sign of life at the root before it begins."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask("/", b"", "HEAD")
        assert (answer.status, answer.body) == (200, b"")


# Access. The table is in test_access; here is that it comes first, and what a page gets.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 400),
        (("Host: localhost", "Host: localhost"), 400),
        (("Host: evil.example",), 403),
        (("Host: localhost", "Origin: https://evil.example"), 403),
        (("Host: localhost", "Origin: https://evil.example", "Content-Type: text/plain"), 403),
        (("Host: localhost", "Sec-Fetch-Site: cross-site"), 403),
        (
            (
                "Host: localhost",
                "Origin: https://evil.example",
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                "Sec-WebSocket-Version: 13",
            ),
            403,
        ),
    ],
)
@pytest.mark.parametrize("target", [CHAT, "/health", "/v1/models", "/api/stop", "/nothing"])
async def test_strangers_are_refused_whatever_they_ask(
    tmp_path: Path, headers: tuple[str, ...], status: int, target: str
) -> None:
    """Fault 34."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(target, BODY, headers=headers)
        error_of(answer)
        assert answer.status == status
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert here.requests == []
        assert not here.stopped.is_set()


async def test_a_page_that_is_allowed(tmp_path: Path) -> None:
    settings = ServerSettings(cors_origins=("https://chat.example",))
    async with supervised(tmp_path, says_ok, server=settings) as here, connected(here.address) as wire:
        page = ("Host: localhost", "Origin: https://chat.example", "Sec-Fetch-Site: cross-site")
        asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
        for target in (CHAT, "/v1/models"):
            answer = await wire.ask(target, method="OPTIONS", headers=(*page, *asks))
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
            assert answer.headers["access-control-allow-headers"] == "content-type"
        for target, status in ((CHAT, 200), ("/v1/models", 405), ("/nothing", 404)):
            answer = await wire.ask(target, BODY, headers=page)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"


async def test_a_page_gets_its_headers_in_a_stream_and_in_an_error(tmp_path: Path) -> None:
    settings = ServerSettings(cors_origins=("https://chat.example",))
    events = says(EVENTS, chunk(b"data: 1\n\n"), END)
    page = ("Host: localhost", "Origin: https://chat.example")
    async with supervised(tmp_path, events, server=settings) as here, connected(here.address) as wire:
        for body in (BODY, b"{"):
            answer = await wire.ask(CHAT, body, headers=page)
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"


async def test_health_waits_for_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        assert json.loads((await wire.ask("/health")).body) == {"status": "ok", "reasons": []}
        here.pool.states = {"fake": "failed", "org/fake": "ready"}
        answer = json.loads((await wire.ask("/health")).body)
        assert answer["status"] == "degraded"
        assert "fake failed" in answer["reasons"][0]
        assert (await wire.ask("/health", method="HEAD")).body == b""
        assert here.pool.taken == 0


async def test_slow_clients_do_not_reach_the_pool(tmp_path: Path) -> None:
    """Fault 28."""
    limits = Limits(body_window_s=0.1)
    async with supervised(tmp_path, says_ok, limits=limits) as here, connected(here.address) as wire:
        wire.request(CHAT, headers=("Host: localhost", "Content-Length: 100"), method="POST")
        assert (await wire.read()).status == 408
        assert here.pool.taken == 0


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

"""Who may ask the front, and what goes where."""

import asyncio
import json
from pathlib import Path

import pytest

from shared.errors import PublicError
from supervisor.http.reader import Limits
from supervisor.settings import ServerSettings
from tests.fixtures.wire import connected
from tests.unit.front.asking import BODY, CHAT, error_of, eventually
from tests.unit.front.doubles import (
    END,
    EVENTS,
    chunk,
    says,
    says_ok,
    supervised,
)
from tests.unit.front.http_app import LOOPS

pytestmark = pytest.mark.parametrize("anyio_backend", LOOPS)

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
        wire.request(
            CHAT, headers=("Host: localhost", "Content-Length: 100", "x-request-id: mine"), method="POST"
        )
        answer = await wire.read()
        assert answer.status == 408
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        # By the same name as in the log.
        assert answer.headers["x-request-id"] == "mine"
        assert here.pool.taken == 0


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join(
        [f"{line} HTTP/1.1", "Host: localhost", *fields, "x-request-id: mine", "", ""]
    ).encode()


@pytest.mark.parametrize(
    ("sent", "status", "route"),
    [
        (head(f"POST {CHAT}", "Content-Length: 100"), 408, CHAT),
        (head("POST /v1/responses", "Content-Length: 100"), 408, "/v1/responses"),
        (head("POST /nothing", "Content-Length: 100"), 408, "other"),
        (head(f"POST {CHAT}", "Transfer-Encoding: chunked") + b"xyz\r\n", 400, CHAT),
        (b"GET /health HTTP/1.1\r\n", 408, "other"),
        (head("GET /hea lth"), 400, "other"),
    ],
    ids=["slow", "slow response", "slow elsewhere", "broken chunks", "slow head", "broken head"],
)
async def test_what_the_server_itself_refuses_is_counted_as_it_was_answered(
    tmp_path: Path, sent: bytes, status: int, route: str
) -> None:
    """A body that came too slowly was answered 408 and counted as a client that left, 499."""
    limits = Limits(body_window_s=0.1, head_s=0.1)
    async with supervised(tmp_path, says_ok, limits=limits) as here, connected(here.address) as wire:
        # Another one before it on the same connection changes nothing.
        assert (await wire.ask("/v1/models")).status == 200
        wire.send(sent)
        assert (await wire.read()).status == status
        async with connected(here.address) as other:
            told = (await other.ask("/metrics")).body.decode()
            assert f'mlx_supervisor_requests_total{{model="",route="{route}",status="{status}"}} 1.0' in told
            assert 'status="499"' not in told
            if route == CHAT and status == 408:
                timeline = json.loads((await other.ask("/stats?request=mine")).body)
                assert timeline["status"] == status


async def test_what_the_server_itself_refuses_has_the_shape_of_the_api(tmp_path: Path) -> None:
    """A slow body for Anthropic's API was refused in OpenAI's shape."""
    limits = Limits(body_window_s=0.1)
    async with supervised(tmp_path, says_ok, limits=limits) as here, connected(here.address) as wire:
        wire.send(head("POST /v1/messages", "Content-Length: 100"))
        answer = await wire.read()
        told = json.loads(answer.body)
        assert (answer.status, told["type"], told["request_id"]) == (408, "error", "mine")
        assert answer.headers["request-id"] == answer.headers["x-request-id"] == "mine"


async def test_a_refusal_behind_a_request_that_runs_is_counted_too(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.gate = asyncio.Event()
        wire.send(head(f"POST {CHAT}", f"Content-Length: {len(BODY)}") + BODY)
        wire.send(head(f"POST {CHAT}", "Transfer-Encoding: chunked") + b"xyz\r\n")
        await eventually(lambda: here.pool.waiting == 1)
        here.pool.gate.set()
        assert [(await wire.read()).status, (await wire.read()).status] == [200, 400]
        async with connected(here.address) as other:
            told = (await other.ask("/metrics")).body.decode()
        assert f'model="fake",route="{CHAT}",status="200"}} 1.0' in told
        assert f'model="",route="{CHAT}",status="400"}} 1.0' in told

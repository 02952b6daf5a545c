"""What the supervisor answers by itself, on the public listener and on the control socket."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PublicError
from supervisor.http.exchange import Exchange
from supervisor.routes import leasing
from supervisor.routes.anthropic_models import info, page
from supervisor.settings import HistorySettings
from tests.fixtures.wire import connected
from tests.unit.front.doubles import says_ok, supervised


@pytest.fixture(scope="module", autouse=True)
def fastapi_is_loaded() -> None:
    """Its imports would count as the first test's time."""
    from supervisor.routes import apps  # noqa: F401


def get(body: bytes) -> Any:
    return json.loads(body)


async def test_a_lease_whose_news_nobody_reads_is_held_and_ends_with_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that outlives its `run` has the connection and knows nothing of it."""
    monkeypatch.setattr(leasing, "_AGAIN_S", 0.0)
    full = asyncio.Event()
    real = vars(Exchange)["unread"].fget

    def unread(exchange: Exchange) -> bool:
        found: bool = real(exchange)
        if found:
            full.set()
        return found

    monkeypatch.setattr(Exchange, "unread", property(unread))
    async with supervised(tmp_path, says_ok) as here:
        with socket.socket(socket.AF_UNIX) as holder:
            holder.connect(here.control)
            holder.sendall(b"POST /api/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            async with asyncio.timeout(20):
                await full.wait()
                lease = here.pool.lease_given
                assert lease is not None
                lease.take_back()
                await asyncio.to_thread(read_to_the_end, holder)


def read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


async def test_what_is_served(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        service = get((await wire.ask("/v1")).body)
        assert service["name"] == "mlx-supervisor"
        assert "POST /v1/chat/completions" in service["routes"]


async def test_models_in_openai_shape(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.states = {"fake": "starting", "org/fake": "failed"}
        cards = {name: get((await wire.ask(f"/v1/models/{name}")).body) for name in ("alias", "org/fake")}
        assert cards["alias"]["id"] == "fake"
        assert (cards["alias"]["resident"], cards["alias"]["loading"]) == (True, True)
        assert (cards["org/fake"]["resident"], cards["org/fake"]["state"]) == (False, "failed")
        for card in cards.values():
            assert card["object"] == "model"
            assert isinstance(card["created"], int)
            assert card["owned_by"] == "mlx-supervisor"
        listed = get((await wire.ask("/v1/models")).body)
        assert listed["object"] == "list"
        # These folders hold no model: what can't be loaded is not offered.
        assert listed["data"] == []


async def test_an_unknown_model(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for name in ("nobody", "..", "%2e%2e/%2e%2e/etc/passwd", "a%00b"):
            answer = await wire.ask(f"/v1/models/{name}")
            assert (answer.status, get(answer.body)["error"]["code"]) == (404, "model_not_found"), name


async def test_engine_is_the_same_in_both_places(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.states = {"fake": "ready"}
        public, control = await wire.ask("/engine"), await wire.ask("/api/engine")
        assert public.body == control.body
        assert get(public.body)["workers"][0]["id"] == "fake"
        assert public.headers["content-type"] == "application/json"


@pytest.mark.parametrize("place", ["public", "control"])
async def test_the_control_surface(tmp_path: Path, place: str) -> None:
    async with supervised(tmp_path, says_ok) as here:
        address: Any = here.address if place == "public" else here.control
        async with connected(address) as wire:
            status = get((await wire.ask("/api/status")).body)
            assert status["home"] == str(tmp_path / "home")
            assert status["log"] == str(tmp_path / "home" / "logs" / "supervisor.log")
            assert set(status) == {"version", "pid", "started_at", "home", "url", "log", "lost_log_lines"}
            models = get((await wire.ask("/api/models")).body)["models"]
            assert [model["id"] for model in models] == ["fake", "org/fake"]
            assert models[0]["problem"]
            assert models[0]["aliases"] == ["alias"]
            answer = await wire.ask("/api/models/org/fake/load", method="POST")
            assert (answer.status, get(answer.body)) == (200, {"id": "org/fake", "state": "ready"})
            assert here.pool.loaded == ["org/fake"]
            answer = await wire.ask("/api/models/org/fake/unload", method="POST")
            assert (answer.status, get(answer.body)) == (200, {"id": "org/fake", "state": None})
            assert (await wire.ask("/api/models/nobody/load", method="POST")).status == 404
            assert (await wire.ask("/api/models/nobody/unload", method="POST")).status == 404
            assert get((await wire.ask("/api/catalog/refresh", method="POST")).body) == {"models": 2}
            answer = await wire.ask("/api/stop", b"{}")
            assert answer.status == 202
            assert here.stopped.is_set()


async def test_a_model_that_left_the_disk_can_still_be_unloaded(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.control) as wire:
        here.pool.states = {"gone": "ready"}
        assert (await wire.ask("/api/models/gone/unload", method="POST")).status == 200
        assert here.pool.states == {}


async def test_the_control_socket_asks_for_no_host(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.control) as wire:
        assert (await wire.ask("/api/status", headers=())).status == 200
        assert (await wire.ask("/v1/chat/completions", b"{}")).status == 404
        assert (await wire.ask("/admin/health")).status == 404


@pytest.mark.parametrize("target", ["/v1", "/v1/models", "/engine", "/api/status", "/api/models", "/health"])
async def test_head_is_get_without_the_body(tmp_path: Path, target: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        named = ("Host: localhost", "X-Request-Id: mine")
        head, full = await wire.ask(target, b"", "HEAD", named), await wire.ask(target, headers=named)
        assert (head.status, head.body) == (200, b"")
        assert head.headers == full.headers


async def test_reading_changes_nothing(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        for target in (
            "/api/stop",
            "/api/models/fake/load",
            "/api/models/fake/unload",
            "/api/catalog/refresh",
        ):
            for method in ("GET", "HEAD"):
                assert (await wire.ask(target, method=method)).status == 405
        assert not here.stopped.is_set()
        assert here.pool.loaded == []


async def test_a_request_that_needs_the_routes_waits_for_them_and_others_do_not(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as slow:
        slow.request("/engine")
        async with connected(here.address) as wire:
            body = b'{"model": "fake"}'
            assert (await wire.ask("/v1/chat/completions", body)).status == 200
            assert (await wire.ask("/health")).status == 200
        assert (await asyncio.wait_for(slow.read(), 20)).status == 200


def test_starting_imports_nothing_that_can_wait() -> None:
    """The supervisor must listen within half a second; FastAPI alone takes as much."""
    late = {"fastapi", "starlette", "pydantic", "uvicorn", "httpx", "click", "numpy"}
    code = (
        "import sys, supervisor.front.app, supervisor.routes.loading, supervisor.http.server;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & late


async def test_metrics_are_readable_by_prometheus(tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.states = {"fake": "ready"}
        here.events.lose("fake", 2)
        here.events.lose("fake", 3)
        chat = b'{"model": "alias", "messages": []}'
        assert (await wire.ask("/v1/chat/completions", chat)).status == 200
        assert (await wire.ask("/v1/chat/completions", b'{"model": "n\\"o", "messages": []}')).status == 404
        assert (await wire.ask("/made/up")).status == 404
        answer = await wire.ask("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    counted = {
        (sample.labels["route"], sample.labels["model"], sample.labels["status"]): sample.value
        for sample in families["mlx_supervisor_requests"].samples
    }
    assert counted == {
        ("/v1/chat/completions", "fake", "200"): 1,
        ("/v1/chat/completions", "", "404"): 1,
        ("other", "", "404"): 1,
    }
    lost = families["mlx_supervisor_lost_log_lines"].samples
    assert {sample.labels["model"]: sample.value for sample in lost} == {"": 0, "fake": 5}
    states = families["mlx_supervisor_worker_state"].samples
    assert [sample.labels["state"] for sample in states if sample.value == 1] == ["ready"]
    for name in ("worker_footprint_bytes", "worker_estimate_bytes"):
        assert [sample.labels for sample in families[f"mlx_supervisor_{name}"].samples] == [{"model": "fake"}]


async def test_the_dashboard_shows_metrics_that_are_there(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        text = (await wire.ask("/metrics")).body.decode()
    named = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    dashboard = (Path(__file__).parents[3] / "deploy" / "grafana.json").read_text()
    for panel in json.loads(dashboard)["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"mlx_supervisor_\w+", target["expr"]):
                assert {name, re.sub("_(bucket|count|sum)$", "", name)} & named, name


async def test_anthropics_clients_get_models_in_their_shape(tmp_path: Path) -> None:
    theirs = ("Host: localhost", "anthropic-version: 2023-06-01")
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        listed = json.loads((await wire.ask("/v1/models", headers=theirs)).body)
        assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}
        entry = json.loads((await wire.ask("/v1/models/alias", headers=theirs)).body)
        assert (entry["type"], entry["id"], entry["display_name"]) == ("model", "fake", "fake")
        datetime.fromisoformat(entry["created_at"])
        wrong = await wire.ask("/v1/models?limit=0", headers=theirs)
        told = json.loads(wrong.body)
        assert (wrong.status, told["error"]["param"]) == (400, "limit")


def pages(**query: str) -> tuple[list[str], bool]:
    models = [info(name, created=0, context=4096) for name in "abcde"]
    shown = page(models, query)
    ids = [entry.id for entry in shown.data]
    assert (shown.first_id, shown.last_id) == ((ids[0], ids[-1]) if ids else (None, None))
    return ids, shown.has_more


def test_pages_of_models() -> None:
    assert pages() == (["a", "b", "c", "d", "e"], False)
    assert pages(limit="2") == (["a", "b"], True)
    assert pages(limit="2", after_id="b") == (["c", "d"], True)
    assert pages(limit="2", after_id="d") == (["e"], False)
    assert pages(after_id="e") == ([], False)
    assert pages(limit="2", before_id="d") == (["b", "c"], True)
    assert pages(limit="9", before_id="c") == (["a", "b"], False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"after_id": "gone"}, "after_id"),
        ({"before_id": "gone"}, "before_id"),
        ({"after_id": "a", "before_id": "c"}, "before_id"),
    ],
)
def test_pages_that_are_none(query: dict[str, str], param: str) -> None:
    with pytest.raises(PublicError) as raised:
        pages(**query)
    assert (raised.value.status, raised.value.param) == (400, param)


async def test_a_card_tells_what_the_model_can_and_what_requests_get(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        card = json.loads((await wire.ask("/v1/models/fake")).body)
        assert card["defaults"] == {} and card["max_concurrency"] == 8
        if "chat" in card["capabilities"]:
            assert {"completions", "messages", "responses", "decisions"} <= set(card["capabilities"])


async def test_a_request_can_be_looked_up_by_its_name(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        named = ("Host: localhost", "X-Request-Id: mine")
        await wire.ask("/v1/chat/completions", b'{"model": "alias"}', headers=named)
        line = json.loads((await wire.ask("/stats?request=mine")).body)
        assert (line["id"], line["route"], line["model"]) == ("mine", "/v1/chat/completions", "fake")
        assert line["status"] == 200
        assert 0 <= line["parsed_ms"] <= line["placed_ms"] <= line["ended_ms"]
        missing = await wire.ask("/stats?request=other")
        told = json.loads(missing.body)["error"]
        assert (missing.status, told["code"], told["param"]) == (404, "request_not_found", "request")


async def test_health_tells_what_does_not_work(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        assert get((await wire.ask("/health")).body) == {"status": "ok", "reasons": []}
        here.pool.states = {"fake": "failed"}
        # A folder where the file should be: nothing can be kept.
        (tmp_path / "home" / "state.db").mkdir()
        assert (await wire.ask("/v1/responses/resp_1")).status == 503
        assert get((await wire.ask("/stats")).body)["response_store"] is None
        health = get((await wire.ask("/health")).body)
        assert health["status"] == "degraded"
        failed, unkept = health["reasons"]
        assert failed.startswith("model fake failed") and "can't be kept" in unkept
        assert str(tmp_path) not in unkept


async def test_stats(tmp_path: Path) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        here.pool.states["fake"] = "ready"
        await wire.ask("/v1/chat/completions", b'{"model": "alias"}')
        stats = json.loads((await wire.ask("/stats")).body)
        assert stats["server"]["requests"] >= 1
        store = stats["response_store"]
        assert (store["responses"], store["bytes"], store["oldest_used_at"]) == (0, 0, None)
        assert store["max_bytes"] == HistorySettings().max_bytes
        assert [(worker["id"], worker["admission"]) for worker in stats["workers"]] == [("fake", None)]


async def test_a_fault_of_ours_is_told_by_its_kind_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its words: they may quote what a client sent."""
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        told: list[Any] = []
        here.events.subscribe(told.append)

        def broken(_: str) -> str:
            raise ValueError("secret")

        monkeypatch.setattr(here.pool, "state_of", broken)
        answer = await wire.ask("/api/models/fake")
        assert (answer.status, get(answer.body)["error"]["code"]) == (500, "internal_error")
        fault = next(event for event in told if event.kind == "route.fault")
        assert (fault.level, fault.fields["error"]) == ("error", "ValueError")
        assert fault.fields["place"].startswith("test_routes.py:")
        assert "secret" not in repr(told)

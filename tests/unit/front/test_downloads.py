"""Downloads over HTTP: shown to everybody, started and cancelled under /api/."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.puller import puller
from tests.fixtures.wire import connected
from tests.unit.front.doubles import supervised

RUNNING = "plan(); progress(400); wait_for_the_end()"


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


async def test_start_join_watch_and_cancel(tmp_path: Path) -> None:
    async with supervised(tmp_path, downloader=puller(tmp_path, RUNNING)) as here:
        async with connected(here.address) as wire:
            assert json.loads((await wire.ask("/downloads")).body) == {"downloads": []}
            started = await wire.ask(
                "/api/downloads", body(repo="org/model@v1", include=["*.json"], token="hf_x")
            )
            assert started.status == 202
            view: Any = json.loads(started.body)
            assert (view["repo"], view["revision"], view["include"]) == ("org/model", "v1", ["*.json"])
            joined = await wire.ask(
                "/api/downloads", body(repo="org/model", revision="v1", include=["*.json"])
            )
            assert joined.status == 200
            assert (await wire.ask("/api/downloads", body(repo="org/model"))).status == 409
            while view["done_bytes"] != 400:
                view = json.loads((await wire.ask("/api/downloads/org/model?wait_s=0.05")).body)
            assert (view["state"], view["total_bytes"]) == ("downloading", 1000)
            for path in ("/downloads", "/api/downloads"):
                answer = await wire.ask(path)
                assert [item["repo"] for item in json.loads(answer.body)["downloads"]] == ["org/model"]
                assert b"hf_x" not in answer.body
        async with connected(here.control) as wire:
            ended = await wire.ask("/api/downloads/org/model", method="DELETE")
            assert json.loads(ended.body)["state"] == "cancelled"
            assert (await wire.ask("/downloads")).status == 404


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"repo": "org/model"', None),
        (body(), None),
        (body(repo=1), "repo"),
        (body(repo="nonsense"), "repo"),
        (body(repo="../../etc/passwd"), "repo"),
        (body(repo="org/model", revision="../x"), "revision"),
        (body(repo="org/model", revision=""), "revision"),
        (body(repo="org/model", include="*.json"), "include"),
        (body(repo="org/model", include=[""]), "include[0]"),
        (body(repo="org/model", token="a\nb"), "token"),
        (body(repo="org/model", other=1), None),
    ],
)
async def test_a_wrong_field_is_named(tmp_path: Path, content: bytes, param: str | None) -> None:
    async with supervised(tmp_path) as here, connected(here.address) as wire:
        answer = await wire.ask("/api/downloads", content, "POST")
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["param"]) == (400, param), error


async def test_other_refusals(tmp_path: Path) -> None:
    async with supervised(tmp_path) as here, connected(here.address) as wire:
        for target, method, status in (
            ("/api/downloads/org/none", "GET", 404),
            ("/api/downloads/org/none", "DELETE", 404),
            ("/api/downloads/%2e%2e/%2e%2e/etc/passwd", "DELETE", 404),
            ("/api/downloads/org/none?wait_s=x", "GET", 400),
            ("/api/downloads/org/none?wait_s=nan", "GET", 400),
            ("/api/downloads/org/none?wait_s=1e9", "GET", 400),
            ("/downloads", "POST", 405),
            ("/api/downloads", "DELETE", 405),
        ):
            answer = await wire.ask(target, method=method)
            assert answer.status == status, (target, method, answer)

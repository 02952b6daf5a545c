"""Adapters as clients and the supervisor see them."""

import asyncio
from pathlib import Path

import pytest

from shared.launch import Options
from shared.status import Failed
from tests.e2e.worker.serving import ENDLESS, Json, Worker, serving
from tests.fixtures.adapters import write_adapter

TEXT = "Tell me something long enough to be kept for the next time"


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    return {name: str(write_adapter(tmp_path / name, seed=seed)) for seed, name in enumerate(["sql", "poet"])}


async def adapters(worker: Worker, status: int = 200, **fields: str) -> Json:
    response = await worker.client.post("/admin/adapters", json=fields)
    assert response.status_code == status, response.text
    body: Json = response.json()
    return body


async def test_a_request_picks_one(folders: dict[str, str]) -> None:
    async with serving(adapters=folders) as worker:
        plain = await worker.text(TEXT)
        sql, poet = [await worker.text(TEXT, adapter=name) for name in folders]
        assert len({plain, sql, poet}) == 3
        # Neither the adapter in place nor the state kept of another one changes what is said.
        assert await worker.text(TEXT, adapter="none") == plain
        assert await worker.text(TEXT, adapter="sql") == sql
        assert await worker.text(TEXT) == plain
    async with serving() as alone:
        assert await alone.text(TEXT) == plain


async def test_prompts_are_scored_with_the_one_that_is_asked_for(folders: dict[str, str]) -> None:
    async def scores(worker: Worker, **fields: str) -> list[float]:
        body = {"prompt": TEXT, "echo": True, "logprobs": 0, "max_tokens": 0, **fields}
        response = await worker.client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        found: list[float] = response.json()["choices"][0]["logprobs"]["token_logprobs"][1:]
        return found

    async with serving(adapters=folders) as worker:
        plain = await scores(worker)
        sql, poet = [await scores(worker, adapter=name) for name in folders]
        assert plain != pytest.approx(sql, abs=1e-3) and sql != pytest.approx(poet, abs=1e-3)
        assert await scores(worker, adapter="sql") == pytest.approx(sql, abs=1e-5)
        assert await scores(worker) == pytest.approx(plain, abs=1e-5)
    async with serving() as alone:
        assert await scores(alone) == pytest.approx(plain, abs=1e-5)


async def test_many_at_once_answer_as_alone(folders: dict[str, str]) -> None:
    names = [None, "sql", "poet"] * 6
    async with serving(adapters=folders) as worker:
        alone = {name: await worker.text(TEXT, adapter=name) for name in names[:3]}
        texts = await asyncio.gather(*(worker.text(TEXT, adapter=name) for name in names))
    assert texts == [alone[name] for name in names]


async def test_an_unknown_one_is_404_with_names(folders: dict[str, str]) -> None:
    async with serving(adapters=folders) as worker:
        response = await worker.chat(adapter="sqq")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "adapter_not_found"
    assert "poet, sql" in error["message"]


async def test_mounting_and_unmounting_while_it_serves(folders: dict[str, str]) -> None:
    async with serving() as worker:
        assert (await adapters(worker, action="list"))["adapters"] == []
        plain = await worker.text(TEXT)
        async with worker.stream(max_tokens=ENDLESS) as stream:
            await anext(stream)
            listed = await adapters(worker, action="mount", name="sql", path=folders["sql"])
        assert [entry["name"] for entry in listed["adapters"]] == ["sql"]
        assert listed["adapters"][0]["bytes"] > 0
        changed = await worker.text(TEXT, adapter="sql")
        assert changed != plain
        # Another folder under the same name, and the first one's state is not used for it.
        await adapters(worker, action="mount", name="sql", path=folders["poet"])
        assert await worker.text(TEXT, adapter="sql") not in (plain, changed)
        assert (await adapters(worker, action="unmount", name="sql"))["adapters"] == []
        assert (await worker.chat(TEXT, adapter="sql")).status_code == 404
        assert await worker.text(TEXT) == plain


async def test_one_in_use_stays(folders: dict[str, str]) -> None:
    async with serving(adapters=folders) as worker:
        async with worker.stream(adapter="sql", max_tokens=ENDLESS) as stream:
            await anext(stream)
            refused = await adapters(worker, 409, action="unmount", name="sql")
            assert refused["error"]["code"] == "adapter_in_use"
        await worker.until(lambda health: health["in_flight"] == 0, "it is over")
        await adapters(worker, action="unmount", name="sql")


async def test_another_one_waits_for_those_that_run(folders: dict[str, str]) -> None:
    async with serving(adapters=folders) as worker:
        async with worker.stream(adapter="sql", max_tokens=ENDLESS) as stream:
            await anext(stream)
            waiting = asyncio.create_task(worker.text(TEXT, adapter="poet"))
            await worker.until(lambda health: health["queued"] == 1, "it waits")
            await anext(stream)
        assert await waiting


async def test_decisions_take_adapters(folders: dict[str, str]) -> None:
    question = {"type": "predicate", "instructions": "It rains."}
    async with serving(adapters=folders) as worker:

        async def probability(adapter: str) -> float:
            body = {"input": "A day.", "questions": [question], "adapter": adapter}
            response = await worker.client.post("/v1/decisions", json=body)
            assert response.status_code == 200, response.text
            found: float = response.json()["answers"][0]["probability"]
            return found

        plain = await probability("none")
        assert await probability("sql") != pytest.approx(plain, rel=1e-3)
        assert await probability("none") == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"action": "mount"}, "name"),
        ({"action": "mount", "name": "x"}, "path"),
        ({"action": "mount", "name": "none", "path": "/x"}, "name"),
        ({"action": "mount", "name": "x", "path": "relative"}, "path"),
        ({"action": "mount", "name": "x", "path": "/nowhere/at/all"}, "path"),
        ({"action": "explode"}, "action"),
    ],
)
async def test_what_is_wrong_is_named(fields: dict[str, str], param: str) -> None:
    async with serving() as worker:
        refused = await adapters(worker, 400, **fields)
        assert refused["error"]["param"] == param
        assert await worker.text()


async def test_a_record_with_a_broken_adapter_fails_the_load(tmp_path: Path) -> None:
    assert Options().adapters == {}
    async with serving(adapters={"sql": str(tmp_path / "gone")}, wait=False) as worker:
        assert worker.ended is not None
        await worker.ended
    failed = worker.said[-1]
    assert isinstance(failed, Failed)
    assert "'sql'" in failed.message

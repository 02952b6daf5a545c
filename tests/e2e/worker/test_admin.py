"""The worker's admin routes, with a real engine behind them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from shared.activity import (
    Activity,
    FirstToken,
    MemoryReading,
    RequestFinished,
    RequestStarted,
    decode_activity,
)
from shared.admin import Leased
from tests.e2e.worker.serving import ENDLESS, Worker, chat_body, serving

ENOUGH = 400
"""Tokens of an answer that still comes when what is asked beside it has been seen to wait."""


@contextlib.asynccontextmanager
async def leased(worker: Worker) -> AsyncIterator[Leased]:
    """Hold a lease, as another process does: over a connection of its own."""
    transport = httpx.AsyncHTTPTransport(uds=str(worker.socket), verify=False)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=240) as client,
        client.stream("POST", "/admin/lease") as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            yield msgspec.json.decode(line, type=Leased)
            return


async def test_health_tells_what_the_worker_does() -> None:
    async with serving() as worker:
        idle = await worker.health()
        async with worker.stream(max_tokens=ENDLESS) as stream:
            await anext(stream)
            busy = await worker.health()
            later = await worker.until(lambda health: health["steps"] > busy["steps"], "no step was taken")
        await worker.until(lambda health: health["running"] == 0, "the row stayed")
    assert (idle["state"], idle["model"], idle["pid"], idle["generation"]) == (
        "ready",
        "tiny",
        os.getpid(),
        3,
    )
    assert (idle["in_flight"], idle["running"], idle["queued"], idle["leases"]) == (0, 0, 0, 0)
    assert (busy["in_flight"], busy["running"], busy["queued"]) == (1, 1, 0)
    assert later["memory"]["footprint_bytes"] > 10_000_000


async def test_a_lease_waits_for_what_runs_then_nothing_runs_until_it_ends() -> None:
    async with serving() as worker:
        async with worker.stream(max_tokens=ENOUGH) as stream:
            await anext(stream)
            lease = leased(worker)
            waiting = asyncio.create_task(lease.__aenter__())
            await worker.until(lambda health: health["leases"] == 1, "nobody waits for a lease")
            later = asyncio.create_task(worker.text())
            health = await worker.until(lambda health: health["queued"] == 1, "the request does not queue")
            assert health["state"] == "ready" and not waiting.done()
            events = [event async for event in stream]
        assert events[-1] == "[DONE]", "what ran was not disturbed"
        await waiting
        health = await worker.health()
        assert (health["state"], health["running"], health["queued"]) == ("leased", 0, 1)
        steps = health["steps"]
        assert (await worker.health())["steps"] == steps
        await lease.__aexit__(None, None, None)
        assert await later


async def test_requests_run_when_the_lease_ends() -> None:
    async with serving() as worker:
        async with leased(worker) as lease:
            assert lease == Leased(waited_ms=lease.waited_ms)
            waiting = [asyncio.create_task(worker.text()) for _ in range(3)]
            await worker.until(lambda health: health["queued"] == 3, "the requests do not queue")
        texts = await asyncio.gather(*waiting)
        health = await worker.health()
    assert len(set(texts)) == 1
    assert (health["state"], health["leases"]) == ("ready", 0)


async def test_several_lessees_get_it_in_order() -> None:
    order: list[int] = []

    async with serving() as worker:

        async def lessee(number: int) -> None:
            async with leased(worker):
                order.append(number)
                assert (await worker.health())["state"] == "leased"

        async with leased(worker):
            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(lessee(number)))
                await worker.until(lambda health, n=number: health["leases"] == n + 2, "not in line")  # type: ignore[misc]
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_a_lessee_that_gives_up_waiting_is_forgotten() -> None:
    async with serving() as worker:
        async with leased(worker):
            lease = leased(worker)
            waiting = asyncio.create_task(lease.__aenter__())
            await worker.until(lambda health: health["leases"] == 2, "not in line")
            waiting.cancel()
            await worker.until(lambda health: health["leases"] == 1, "still in line")
        assert await worker.text()


async def test_drain_waits_for_what_was_admitted_and_admits_nothing_more() -> None:
    async with serving(max_concurrency=1) as worker:
        async with worker.stream(max_tokens=ENOUGH) as stream:
            await anext(stream)
            queued = asyncio.create_task(worker.text())
            await worker.until(lambda health: health["queued"] == 1, "not queued")
            draining = asyncio.create_task(worker.client.post("/admin/drain", json={"timeout_ms": 20_000}))
            await worker.until(lambda health: health["state"] == "draining", "not draining")
            refused = await worker.chat()
            events = [event async for event in stream]
        answer = (await draining).json()
        assert events[-1] == "[DONE]"
        assert await queued
        assert (await worker.health())["state"] == "draining", "a drained worker stays drained"
        again = (await worker.client.post("/admin/drain")).json()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) >= 1
    assert (answer["drained"], answer["in_flight"]) == (True, 0)
    assert answer["waited_ms"] >= 0
    assert again["drained"] is True


async def test_a_drain_that_runs_out_of_time_says_so() -> None:
    async with serving() as worker, worker.stream(max_tokens=ENDLESS) as stream:
        await anext(stream)
        answer = (await worker.client.post("/admin/drain", json={"timeout_ms": 50})).json()
        assert (answer["drained"], answer["in_flight"]) == (False, 1)
        assert answer["waited_ms"] >= 50


async def test_one_request_is_cancelled_by_its_id_and_its_client_is_told() -> None:
    async with serving(max_concurrency=1) as worker:
        async with worker.stream(max_tokens=ENDLESS) as stream:
            first: Any = await anext(stream)
            whole = asyncio.create_task(worker.chat())
            await worker.until(lambda health: health["queued"] == 1, "not queued")
            response = await worker.client.post(f"/admin/requests/{first['id']}/cancel")
            events: list[Any] = [event async for event in stream]
        assert (await whole).status_code == 200, "the row is free"
        again = await worker.client.post(f"/admin/requests/{first['id']}/cancel")
    assert response.json() == {"id": first["id"], "cancelled": True}
    assert events[-1]["error"]["code"] == "cancelled"
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")


async def test_internal_completions_are_answered_in_order_and_alone() -> None:
    inputs = [{"user": "x" * (50 - 10 * number), "system": "s"} for number in range(5)]
    async with serving(max_concurrency=2) as worker:
        body = {"stage": "condense", "input": inputs, "max_tokens": 6}
        response = await worker.client.post("/admin/memory/complete", json=body)
        outputs = response.json()["outputs"]
        one = await worker.client.post("/admin/memory/complete", json=body | {"input": inputs[3]})
        health = await worker.health()
    assert response.json()["stage"] == "condense"
    assert [output["completion_tokens"] for output in outputs] == [6] * 5
    lengths = [output["prompt_tokens"] for output in outputs]
    assert lengths == [lengths[0] - 10 * number for number in range(5)]
    assert one.json()["outputs"] == [outputs[3]]
    assert (health["state"], health["in_flight"], health["leases"]) == ("ready", 0, 0)


async def test_internal_completions_wait_for_the_batch_to_be_empty() -> None:
    async with serving() as worker:
        async with worker.stream(max_tokens=ENOUGH) as stream:
            await anext(stream)
            body = {"stage": "x", "input": {"user": "x"}, "max_tokens": 2}
            waiting = asyncio.create_task(worker.client.post("/admin/memory/complete", json=body))
            await worker.until(lambda health: health["leases"] == 1, "no lease is asked for")
            assert (await worker.health())["running"] == 1
            events = [event async for event in stream]
        assert events[-1] == "[DONE]"
        assert (await waiting).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "stage"),
        ({"stage": "x", "input": [], "max_tokens": 1}, "input"),
        ({"stage": "x", "input": {}, "max_tokens": 1}, "input.user"),
        ({"stage": "x", "input": {"user": "x"}, "max_tokens": 0}, "max_tokens"),
        ({"stage": "x", "input": {"user": "x" * 5000}, "max_tokens": 1}, "messages"),
    ],
)
async def test_bad_internal_completions_are_refused(body: dict[str, Any], param: str) -> None:
    async with serving() as worker:
        response = await worker.client.post("/admin/memory/complete", json=body)
        assert (await worker.health())["leases"] == 0
        assert await worker.text()
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_feed_tells_of_requests_and_memory() -> None:
    async with serving() as worker, worker.client.stream("GET", "/admin/events") as response:
        lines = response.aiter_lines()
        assert isinstance(decode_activity((await anext(lines)).encode()), MemoryReading)
        answer = await worker.answer(max_tokens=5)
        seen: list[Activity] = []
        # Memory is told from time to time, too.
        while not (
            any(isinstance(one, RequestFinished) for one in seen) and isinstance(seen[-1], MemoryReading)
        ):
            seen.append(decode_activity((await anext(lines)).encode()))
    started, first, finished = (one for one in seen if not isinstance(one, MemoryReading))
    assert isinstance(started, RequestStarted) and isinstance(first, FirstToken)
    assert isinstance(finished, RequestFinished)
    assert {started.id, first.id, finished.id} == {answer["id"]}
    assert (finished.reason, finished.completion_tokens) == ("length", 5)
    assert started.prompt_tokens == finished.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert started.at <= first.at <= finished.at
    assert 0 <= first.queued_s <= first.ttft_s <= finished.total_s


async def test_memory_is_told_and_trimmed() -> None:
    async with serving() as worker:
        async with worker.stream(max_tokens=ENDLESS) as stream:
            await anext(stream)
            await worker.until(lambda health: health["memory"]["kv_bytes"] > 0, "no KV cache is counted")
        memory = (await worker.client.get("/admin/memory")).json()
        nothing = (await worker.client.post("/admin/memory/trim", json={"bytes": 0})).json()
        trimmed = (await worker.client.post("/admin/memory/trim")).json()
    assert memory["weights_bytes"] > 100_000
    assert memory["active_bytes"] >= memory["weights_bytes"]
    assert memory["limit_bytes"] > memory["active_bytes"]
    assert memory["footprint_bytes"] > memory["active_bytes"]
    assert nothing["freed_bytes"] == 0
    assert trimmed["memory"]["cache_bytes"] == 0


async def test_what_it_may_take_can_be_changed_and_promises_are_told() -> None:
    async with serving() as worker:
        small = (await worker.client.post("/admin/memory/limit", json={"bytes": 0})).json()
        large = (await worker.client.post("/admin/memory/limit", json={"bytes": 2**30})).json()
        async with worker.stream(max_tokens=ENDLESS) as stream:
            await anext(stream)
            busy = (await worker.client.get("/admin/memory")).json()
    assert small["rows_bytes"] < large["rows_bytes"] < 2**30
    idle = large["memory"]["reserved_bytes"]
    assert busy["reserved_bytes"] > idle > large["memory"]["weights_bytes"], "the process counts too"


async def test_a_row_beyond_the_share_asks_in_the_feed_and_is_given_more_or_given_back() -> None:
    async with serving(memory_bytes=1, budget_bytes=2**40) as worker:
        transport = httpx.AsyncHTTPTransport(uds=str(worker.socket))
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=240) as client,
            client.stream("GET", "/admin/events") as feed,
        ):
            lines = feed.aiter_lines()

            async def wanted() -> int:
                """What is asked for, as soon as something is."""
                async for line in lines:
                    said = decode_activity(line.encode())
                    if isinstance(said, MemoryReading) and said.memory.wanted_bytes:
                        return said.memory.wanted_bytes
                raise AssertionError("the feed ended")

            async def limit(size: int, **more: Any) -> dict[str, Any]:
                answer = await worker.client.post("/admin/memory/limit", json={"bytes": size, **more})
                memory: dict[str, Any] = answer.json()["memory"]
                return memory

            answer = asyncio.ensure_future(worker.chat(stream=True))
            asked = await wanted()
            assert not answer.done()
            given = await limit(asked)
            assert given["wanted_bytes"] == 0 and given["reserved_bytes"] <= asked
            assert (await answer).status_code == 200
            await limit(1)
            answer = asyncio.ensure_future(worker.chat())
            await wanted()
            # A short row runs where there never will be more, and not before it has all of that.
            assert (await limit(1, most_bytes=2))["wanted_bytes"] == 2
            memory = await limit(2, most_bytes=2)
            assert memory["wanted_bytes"] == 0
            assert (await answer).status_code == 200
            await limit(1, back=True)
            back = await worker.chat(stream=True)
            assert (back.status_code, back.headers["x-handed-back"]) == (503, "1")
            assert back.json()["error"]["code"] == "no_room"
            assert (await worker.client.get("/admin/memory")).json()["number"] > memory["number"]


@pytest.mark.parametrize("path", ["/admin/drain", "/admin/memory/trim", "/admin/memory/limit"])
async def test_bad_admin_bodies_are_refused(path: str) -> None:
    async with serving() as worker:
        bodies = [b"{", b'{"timeout_ms": -1, "bytes": -1}', b'{"timeout_ms": "x", "bytes": "x"}']
        statuses = [(await worker.client.post(path, content=body)).status_code for body in bodies]
        assert (await worker.client.post("/v1/chat/completions", json=chat_body())).status_code == 200
    assert statuses == [400, 400, 400]

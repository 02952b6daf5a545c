"""Conversations go on from what is kept of them, in memory and on disk, as a client sees it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker.serving import Json, Worker, serving
from tests.fixtures.tiny import Tiny
from worker.engine.generator import END

SYSTEM = {"role": "system", "content": "Answer as a pirate would. " * 8}
Turn = dict[str, str]


async def say(worker: Worker, history: list[Turn], text: str, **fields: Any) -> Json:
    """The answer's body; the history gets both turns."""
    history.append({"role": "user", "content": text})
    body = await worker.answer(messages=list(history), **fields)
    history.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    return body


def cached(body: Json) -> int:
    count: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


async def settled(worker: Worker) -> Json:
    """The counters once the engine has put away what has been answered, which it does afterwards."""
    # Runs between two steps of the engine, and frees nothing.
    await worker.client.post("/admin/memory/trim", json={"bytes": 0})
    return await stats(worker)


async def stats(worker: Worker) -> Json:
    body: Json = (await worker.client.get("/admin/cache")).json()
    return body


@contextmanager
def kv(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700, exist_ok=True)
    yield str(folder)


async def test_the_next_turn_computes_its_own_tokens_alone() -> None:
    history: list[Turn] = [SYSTEM]
    async with serving() as worker, serving(prompt_cache_bytes=0) as cold:
        first = await say(worker, history, "Where is the treasure?")
        assert cached(first) == 0
        second = await say(worker, history, "And the ship?")
        # All of the first turn but what the last token of its answer left to compute.
        assert cached(second) >= first["usage"]["total_tokens"] - 1
        again = await cold.answer(messages=history[:-1])
        assert cached(again) == 0
        assert again["choices"] == second["choices"]
        kept = await settled(worker)
        assert (kept["hits"], kept["misses"], kept["entries"]) == (1, 1, 1)
        assert kept["reused_tokens"] == cached(second)


async def test_another_conversation_shares_the_system_prompt() -> None:
    async with serving() as worker:
        await say(worker, [SYSTEM], "Where is the treasure?")
        other = await say(worker, [SYSTEM], "Who are you?")
        assert cached(other) > len(SYSTEM["content"])


async def test_what_is_cached_is_told_in_streams_and_in_the_feed() -> None:
    async with serving() as worker:
        await say(worker, [SYSTEM], "Hello")
        async with worker.client.stream("GET", "/admin/events") as feed:
            lines = feed.aiter_lines()
            await anext(lines)
            messages = [SYSTEM, {"role": "user", "content": "Hello"}]
            async with worker.stream(messages=messages, stream_options={"include_usage": True}) as events:
                last = [event async for event in events][-2]
            assert isinstance(last, dict)
            assert cached(last) == last["usage"]["prompt_tokens"] - END
            async for line in lines:
                if '"finished"' in line and last["id"] in line:
                    assert f'"cached_tokens":{cached(last)}' in line
                    break


@pytest.mark.parametrize("how", ["session_id", "prompt_cache_key", "x-session-affinity", "x-session-id"])
async def test_a_session_is_recognised(how: str) -> None:
    async with serving() as worker:
        history: list[Turn] = [SYSTEM]
        fields: dict[str, Any] = {how: "s1"} if "-" not in how else {}
        worker.client.headers.update({how: "s1"} if "-" in how else {})
        await say(worker, history, "Hello", **fields)
        await say(worker, history, "And?", **fields)
        assert (await stats(worker))["session_hits"] == 1


async def test_trimming_drops_the_oldest_and_says_how_much() -> None:
    async with serving() as worker:
        for text in ("one", "two", "three"):
            await say(worker, [{"role": "user", "content": text * 30}], "Go on")
        before = await settled(worker)
        memory = (await worker.client.get("/admin/memory")).json()
        assert memory["prompt_cache_bytes"] == before["bytes"] > 0
        await worker.client.post("/admin/memory/trim", json={"bytes": 10**9})
        trimmed = (await worker.client.post("/admin/memory/trim", json={})).json()
        after = await stats(worker)
        assert (after["entries"], after["bytes"]) == (0, 0)
        assert trimmed["memory"]["prompt_cache_bytes"] == 0
        assert trimmed["memory"]["active_bytes"] <= memory["active_bytes"] - before["bytes"]


async def test_a_cap_of_bytes_is_kept_to() -> None:
    async with serving() as worker:
        await say(worker, [SYSTEM], "one")
        size = (await settled(worker))["bytes"]
    async with serving(prompt_cache_bytes=2 * size) as worker:
        for number in range(5):
            await say(worker, [{"role": "user", "content": str(number) * 230}], "Go on")
            kept = await settled(worker)
            assert kept["bytes"] <= kept["limit_bytes"] == 2 * size
        assert (await settled(worker))["evictions"] > 0


async def test_a_drained_worker_leaves_its_conversations_to_the_next(tmp_path: Path) -> None:
    history: list[Turn] = [SYSTEM]
    with kv(tmp_path) as folder:
        async with serving(saved_state=folder) as worker:
            first = await say(worker, history, "Where is the treasure?")
            drained = await worker.client.post("/admin/drain", json={"timeout_ms": 5000})
            assert drained.json()["drained"] is True
            assert (await stats(worker))["saved"]["entries"] == 1
        async with serving(saved_state=folder) as worker, serving(prompt_cache_bytes=0) as cold:
            second = await say(worker, history, "And the ship?")
            assert cached(second) >= first["usage"]["total_tokens"] - 1
            saved = (await stats(worker))["saved"]
            assert (saved["restores"], saved["failed"]) == (1, 0) and saved["restore_s"] > 0
            again = await cold.answer(messages=history[:-1])
            assert again["choices"] == second["choices"]


async def test_a_stopped_worker_saves_too(tmp_path: Path) -> None:
    history: list[Turn] = [SYSTEM]
    with kv(tmp_path) as folder:
        async with serving(saved_state=folder) as worker:
            await say(worker, history, "Where is the treasure?")
        async with serving(saved_state=folder) as worker:
            assert cached(await say(worker, history, "And the ship?")) > 0


async def test_what_rests_is_saved_without_being_asked(tmp_path: Path) -> None:
    with kv(tmp_path) as folder:
        async with serving(saved_state=folder) as worker:
            await say(worker, [SYSTEM], "Where is the treasure?")
            async with asyncio.timeout(20):
                # Nothing announces it.
                while not (kept := await stats(worker))["saved"]["entries"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert kept["entries"] == 1


async def test_a_damaged_file_is_computed_again_and_removed(tmp_path: Path) -> None:
    history: list[Turn] = [SYSTEM]
    with kv(tmp_path) as folder:
        async with serving(saved_state=folder) as worker:
            await say(worker, history, "Where is the treasure?")
        (file,) = Path(folder).glob("*/*.kv")
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
        async with serving(saved_state=folder) as worker:
            second = await say(worker, history, "And the ship?")
            assert cached(second) == 0 and not file.exists()
            assert (await stats(worker))["saved"]["failed"] == 1


async def test_a_folder_that_cannot_be_used_costs_nothing_but_the_saving(tmp_path: Path) -> None:
    async with serving(saved_state=str(tmp_path / "not" / "there")) as worker:
        await say(worker, [SYSTEM], "Hello")
        assert (await stats(worker))["saved"] is None


async def test_a_row_that_can_never_fit_is_refused_with_numbers() -> None:
    # The least that a worker is given is 64 MiB, so what a row holds has to be more.
    async with serving(memory_bytes=1) as worker:
        assert (await worker.chat("Hello")).status_code == 200
    async with serving(Tiny(hidden=512, layers=8, context=16384), memory_bytes=1) as worker:
        refused = await worker.chat("x" * 6000, max_tokens=8000)
        assert refused.status_code == 507
        error = refused.json()["error"]
        assert error["code"] == "does_not_fit" and "MiB" in error["message"]
        assert (await worker.chat("Hello", max_tokens=4)).status_code == 200

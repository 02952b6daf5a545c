"""Clients that go away, and clients that hardly read (faults 25 and 27)."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable

import pytest

from tests.e2e.worker.serving import ENDLESS, Worker, chat_body, serving
from tests.fixtures.tiny import Tiny


@contextlib.asynccontextmanager
async def sent(
    worker: Worker, **fields: object
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A request on a raw connection, which leaving the block closes."""
    reader, writer = await asyncio.open_unix_connection(str(worker.socket), limit=1024)
    body = json.dumps(chat_body(**fields)).encode()  # type: ignore[arg-type]
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def assert_free(worker: Worker) -> None:
    """Nothing runs or waits any more, and the next request is served."""
    await worker.until(lambda health: health["in_flight"] == 0, "something is still in flight")
    assert await worker.text(max_tokens=2)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_tokens_come(stream: bool) -> None:
    async with serving(max_concurrency=1) as worker:
        async with sent(worker, stream=stream, max_tokens=ENDLESS):
            await worker.until(lambda health: health["memory"]["kv_bytes"] > 0, "nothing runs")
        await assert_free(worker)


async def test_during_prefill() -> None:
    # Seconds long: it is under way until somebody has seen that it is.
    text, step = "x" * 19_000, 16
    async with serving(Tiny(context=20_000), max_concurrency=1, prefill_step=step) as worker:
        steps = (await worker.health())["steps"]
        async with sent(worker, text=text, max_tokens=ENDLESS):
            await worker.until(lambda health: health["steps"] > steps, "nothing runs")
        await assert_free(worker)
        assert (await worker.health())["steps"] - steps < len(text) / step


async def test_while_waiting_in_the_line() -> None:
    async with serving(max_concurrency=1) as worker, worker.stream(max_tokens=ENDLESS) as running:
        await anext(running)
        async with sent(worker), sent(worker, stream=True):
            await worker.until(lambda health: health["queued"] == 2, "they do not wait")
        health = await worker.until(lambda health: health["queued"] == 0, "they still wait")
        assert health["running"] == 1


async def test_before_the_body_is_there() -> None:
    async with serving() as worker:
        _, writer = await asyncio.open_unix_connection(str(worker.socket))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
        await assert_free(worker)


async def test_a_row_is_gone_within_a_step_of_the_disconnect() -> None:
    async with serving() as worker:
        async with worker.stream(max_tokens=ENDLESS) as other:
            await anext(other)
            async with sent(worker, stream=True, max_tokens=ENDLESS) as (reader, _):
                await reader.readuntil(b"content")
                before = await worker.until(lambda health: health["running"] == 2, "it does not run")
            after = await worker.until(lambda health: health["running"] == 1, "it still runs")
            # A step for the disconnect to be seen, one for the row to leave, and what the asking takes.
            assert after["steps"] - before["steps"] < 1000
        await assert_free(worker)


async def test_hundreds_of_them_leak_nothing() -> None:
    async with serving(max_concurrency=4, queue=100) as worker:
        await worker.text()
        connections = 300

        async def come_and_go(number: int) -> None:
            async with sent(worker, stream=bool(number % 2), max_tokens=ENDLESS) as (reader, _):
                if number % 3 == 0:
                    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                        async with asyncio.timeout(0.02):
                            await reader.readuntil(b"content")

        for start in range(0, connections, 50):
            await asyncio.gather(*(come_and_go(number) for number in range(start, start + 50)))
        await assert_free(worker)
        assert worker.app is not None
        assert worker.app.open_replies == 0


@pytest.mark.slow
async def test_a_slow_reader_neither_slows_its_mates_nor_loses_anything() -> None:
    """Fault 27. The reader takes nothing for as long as its mate needs for its whole answer."""
    tokens = 900  # more than the socket's buffers hold of their events
    async with serving(context=100_000) as worker:
        alone_s = await timed(asyncio.gather(*(worker.answer(max_tokens=100) for _ in range(2))))
        async with sent(worker, stream=True, max_tokens=tokens) as (reader, _):
            await reader.readuntil(b"content")
            beside_s = await timed(worker.answer(max_tokens=100))
            await worker.until(
                lambda health: health["running"] == 0 and health["memory"]["kv_bytes"] == 0,
                "it waits for its reader",
                30,
            )
            slow = b""
            while not slow.endswith(b"0\r\n\r\n"):
                slow += await reader.read(2**16)
    assert beside_s < 3 * alone_s + 1
    events = [json.loads(line[6:]) for line in slow.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert tokens - 5 <= len(text) <= tokens
    assert len(events) < tokens, "what waited for the reader came together"


async def timed(work: Awaitable[object]) -> float:
    """Seconds that `work` takes."""
    started = time.monotonic()
    await work
    return time.monotonic() - started

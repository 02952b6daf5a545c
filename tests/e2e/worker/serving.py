"""A real worker's application, engine and socket inside the test's own process: starts in milliseconds.

What concerns the process itself (its pipes, signals and end) is tested with a process, see `process.py`.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx

from shared.launch import LaunchRecord, Options
from shared.status import Failed, Ready, Status
from tests.fixtures.tiny import Tiny, tiny_model
from worker.app import App
from worker.engine.thread import Engine
from worker.model.ahead import Ahead

Json = dict[str, Any]

_numbers = itertools.count()
TINY = Tiny()
ENDLESS = 10**6
"""More tokens than any test waits for."""


class Worker:
    """A worker that serves, and a client of its own connection pool."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.said: list[Status] = []
        self.app: App | None = None
        self.ended: asyncio.Task[int] | None = None
        # Nobody speaks TLS here, and to read the certificates takes longer than most tests.
        transport = httpx.AsyncHTTPTransport(uds=str(socket), verify=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=240)

    async def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat_body(text, **fields))

    async def answer(self, text: str = "Hello", **fields: Any) -> Json:
        """The body of a successful answer."""
        response = await self.chat(text, **fields)
        assert response.status_code == 200, response.text
        body: Json = response.json()
        return body

    async def text(self, text: str = "Hello", **fields: Any) -> str:
        content: str = (await self.answer(text, **fields))["choices"][0]["message"]["content"]
        return content

    @contextlib.asynccontextmanager
    async def stream(self, text: str = "Hello", **fields: Any) -> AsyncIterator[AsyncIterator[Json | str]]:
        body = chat_body(text, stream=True, **fields)
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            yield events(response)

    async def health(self) -> Json:
        body: Json = (await self.client.get("/admin/health")).json()
        return body

    async def until(self, condition: Callable[[Json], bool], what: str, within_s: float = 30) -> Json:
        """Ask for the health until it fulfils `condition`; nothing announces what happens inside."""
        try:
            async with asyncio.timeout(within_s):
                while not condition(health := await self.health()):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{what}: {await self.health()}") from None
        return health


def chat_body(text: str = "Hello", **fields: Any) -> Json:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0}
    return {**body, **fields}


async def events(response: httpx.Response) -> AsyncIterator[Json | str]:
    """The events of a stream as they come: JSON, and the string `[DONE]`."""
    async for line in response.aiter_lines():
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def content(stream: list[Json | str]) -> str:
    """The text of a stream's content deltas."""
    choices = [event["choices"][0] for event in stream if isinstance(event, dict) and event.get("choices")]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextlib.asynccontextmanager
async def serving(
    tiny: Tiny = TINY, *, directory: Path | None = None, wait: bool = True, **options: Any
) -> AsyncIterator[Worker]:
    """A worker on a tiny model, or on the one in `directory`; ready, unless `wait` is False."""
    folder = Path(tempfile.mkdtemp(prefix="w-"))
    worker = Worker(folder / f"{next(_numbers)}.sock")
    ready = asyncio.Event()

    def say(status: Status) -> None:
        worker.said.append(status)
        if isinstance(status, Ready | Failed):
            ready.set()

    record = LaunchRecord(
        socket=str(worker.socket),
        model="tiny",
        directory=str(directory or tiny_model(tiny)),
        generation=3,
        options=Options(**options),
    )
    worker.app = App(record, say, lambda path: None, Engine(), Ahead())
    worker.ended = asyncio.create_task(worker.app.run())
    try:
        if wait:
            await ready.wait()
            assert isinstance(worker.said[-1], Ready), worker.said[-1]
        yield worker
    finally:
        await worker.client.aclose()
        worker.app.stop()
        await worker.ended
        shutil.rmtree(folder)

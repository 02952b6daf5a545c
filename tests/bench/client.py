"""A client that takes next to nothing from the cores it measures: a socket, a parser, the clock."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

Message = dict[str, str]


@dataclass
class Answer:
    """One streamed answer. Times are seconds after the request was sent."""

    times_s: list[float] = field(default_factory=list)
    """When each event with content came."""
    text: str = ""
    end_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def first_s(self) -> float:
        return self.times_s[0]

    @property
    def last_s(self) -> float:
        return self.times_s[-1]


class Exchange:
    """Callbacks of httptools, for one answer of a chat. Other APIs' say otherwise what an event holds."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False
        self.started = 0.0
        self._rest = b""

    def on_body(self, body: bytes) -> None:
        now = time.perf_counter() - self.started
        *events, self._rest = (self._rest + body).split(b"\n\n")
        for event in events:
            data = event.rpartition(b"data: ")[2]
            if data.startswith(b"{"):
                self.take(json.loads(data), now)

    def take(self, chunk: dict[str, Any], now: float) -> None:
        if "error" in chunk:
            raise RuntimeError(chunk["error"]["message"])
        if chunk.get("usage"):
            self.answer.prompt_tokens = chunk["usage"]["prompt_tokens"]
            self.answer.cached_tokens = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.answer.completion_tokens = chunk["usage"]["completion_tokens"]
        content = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if content:
            self.said(content, now)

    def said(self, text: str, now: float) -> None:
        self.answer.times_s.append(now)
        self.answer.text += text

    def on_message_complete(self) -> None:
        self.answer.end_s = time.perf_counter() - self.started
        self.done = True


async def stream_chat(
    url: str, model: str, asked: str | list[Message], max_tokens: int, **fields: Any
) -> Answer:
    """Stream one greedy answer to a text or a conversation. Raises RuntimeError unless it is complete."""
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    return await stream(url, "/v1/chat/completions", body, Exchange())


async def stream(url: str, path: str, fields: dict[str, Any], exchange: Exchange) -> Answer:
    """Have `exchange` take the events of an answer. Raises RuntimeError unless it is complete."""
    body = json.dumps(fields).encode()
    place = urlsplit(url)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        exchange.started = time.perf_counter()
        writer.write(head.encode() + body)
        parser = httptools.HttpResponseParser(exchange)
        while not exchange.done:
            data = await reader.read(65536)
            if not data:
                raise RuntimeError("the answer was cut")
            parser.feed_data(data)
        if parser.get_status_code() != 200:
            raise RuntimeError(f"status {parser.get_status_code()}")
    finally:
        writer.close()
    return exchange.answer

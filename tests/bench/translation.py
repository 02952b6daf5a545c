"""What the shapes of messages and responses cost: their streams against a chat's, of the same tokens."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.client import Answer, Exchange, stream
from tests.bench.engine import MODEL, SUBJECTS
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model


class _Messages(Exchange):
    def take(self, chunk: dict[str, Any], now: float) -> None:
        match chunk["type"]:
            case "content_block_delta":
                self.said(chunk["delta"]["text"], now)
            case "message_delta":
                self.answer.completion_tokens = chunk["usage"]["output_tokens"]
            case "error":
                raise RuntimeError(chunk["error"]["message"])


class _Responses(Exchange):
    def take(self, chunk: dict[str, Any], now: float) -> None:
        match chunk["type"]:
            case "response.output_text.delta":
                self.said(chunk["delta"], now)
            case "response.completed" | "response.incomplete":
                self.answer.completion_tokens = chunk["response"]["usage"]["output_tokens"]
            case "response.failed" | "error":
                raise RuntimeError(str(chunk))


# Name, path, the field that limits the answer, other fields, and who reads it.
_APIS: Final[tuple[tuple[str, str, str, dict[str, Any], type[Exchange]], ...]] = (
    ("chat", "/v1/chat/completions", "max_tokens", {"stream_options": {"include_usage": True}}, Exchange),
    ("messages", "/v1/messages", "max_tokens", {}, _Messages),
    ("responses", "/v1/responses", "max_output_tokens", {}, _Responses),
)


def measure(*, quick: bool) -> list[Row]:
    """One stream, and eight at once, where the engine leaves the least time; the APIs take turns."""
    rounds, tokens = (5, 24) if quick else (15, 64)
    rows = []
    with tempfile.TemporaryDirectory() as base:
        config = models_config(**{MODEL: starter_model()}) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", config=config) as service:
            for subjects in (SUBJECTS[:1], SUBJECTS):
                rows += asyncio.run(_compared(service.url, subjects, tokens, rounds))
    return rows


async def _compared(url: str, subjects: tuple[str, ...], tokens: int, rounds: int) -> list[Row]:
    rates: dict[str, list[float]] = {name: [] for name, *_ in _APIS}
    for number in range(-1, rounds):
        for name, path, limit, fields, reads in _APIS[:: -1 if number % 2 else 1]:
            asked = {"model": MODEL, "temperature": 0, "stream": True, limit: tokens, **fields}
            answers = await asyncio.gather(
                *(stream(url, path, {**asked, **_said(name, subject)}, reads()) for subject in subjects)
            )
            if number >= 0:  # the first round of each warms up
                rates[name].append(_rate(answers, tokens))
    what = "one stream" if len(subjects) == 1 else f"{len(subjects)} at once"
    return [
        row(f"{what}: {name}", "tok/s", rates[name], rates["chat"], goal=">= 0.98 of chat")
        for name in ("messages", "responses")
    ]


def _said(name: str, subject: str) -> dict[str, Any]:
    text = f"Write a very long story about {subject}."
    return {"input": text} if name == "responses" else {"messages": [{"role": "user", "content": text}]}


def _rate(answers: list[Answer], tokens: int) -> float:
    """Tokens per second from the first that came to the last."""
    for answer in answers:
        if answer.completion_tokens != tokens:
            raise RuntimeError(f"an answer ended by itself after {answer.completion_tokens} tokens")
    elapsed_s = max(answer.last_s for answer in answers) - min(answer.first_s for answer in answers)
    return (tokens - 1) * len(answers) / elapsed_s

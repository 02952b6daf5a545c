"""`POST /v1/chat/completions`.

Source: OpenAI's API reference, "The chat completion object" and "The chat completion chunk object".
`stop_reason` beside `finish_reason` is the stop sequence or token id of the request's that was matched, under
the name that vLLM gives it.
"""

from typing import Any

import orjson

from shared import sse
from worker.api.chat_wire import ChatAsked, to_request
from worker.api.exchange import Exchange
from worker.api.usage import usage_object
from worker.api.validation import decode
from worker.completion import Completions
from worker.reply import Choices
from worker.text.events import Finished, ReplyEvent, TextDelta
from worker.text.logprobs import Likelihood, TokenLikelihood, spelled

UNLIKELY = -9999.0
"""JSON has no infinity; OpenAI says that this stands for it."""


class Chat:
    """The route, for one loaded model. `fingerprint` names model, versions and backend."""

    def __init__(self, completions: Completions, fingerprint: str) -> None:
        self._completions = completions
        self._fingerprint = fingerprint

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), ChatAsked)
        request = to_request(asked)
        opened = self._completions.open_all([request], prefix="chatcmpl", stream=bool(asked.stream))
        with exchange.while_connected():
            async with opened as choices:
                if asked.stream:
                    await self._stream(exchange, choices, asked)
                else:
                    await self._whole(exchange, choices, asked)

    async def _whole(self, exchange: Exchange, choices: Choices, asked: ChatAsked) -> None:
        answers = [_Answer() for _ in choices.replies]
        async for batch in choices.batches():
            for index, events in batch:
                answers[index].take(events)
        body = {
            **self._head(choices, "chat.completion"),
            "choices": [
                answer.choice(index, with_logprobs=bool(asked.logprobs))
                for index, answer in enumerate(answers)
            ],
            "usage": usage_object(choices.usage),
        }
        await exchange.answer(200, orjson.dumps(body))

    async def _stream(self, exchange: Exchange, choices: Choices, asked: ChatAsked) -> None:
        head = self._head(choices, "chat.completion.chunk")
        usage = {"usage": None} if asked.wants_usage else {}
        streams = [
            _Stream(head, usage, index, with_logprobs=bool(asked.logprobs))
            for index in range(len(choices.replies))
        ]
        async for batch in choices.batches():
            if not exchange.started:
                # Not before the first token: until then an error can still be a status.
                await exchange.start_events()
            await exchange.write(b"".join([streams[index].say(events) for index, events in batch]))
        data = b""
        if asked.wants_usage:
            last = {**head, "choices": [], "usage": usage_object(choices.usage)}
            data = sse.event(orjson.dumps(last))
        await exchange.finish(data + sse.DONE)

    def _head(self, choices: Choices, kind: str) -> dict[str, Any]:
        return {
            "id": choices.id,
            "object": kind,
            "created": choices.created,
            "model": self._completions.model_id,
            "system_fingerprint": self._fingerprint,
        }


class _Answer:
    """One choice, gathered."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._end: Finished | None = None

    def take(self, events: list[ReplyEvent]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                self._pieces.append(event.text)
                self._logprobs += map(_token, event.logprobs)
            else:
                self._end = event

    def choice(self, index: int, *, with_logprobs: bool) -> dict[str, Any]:
        end = self._end
        assert end is not None
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(self._pieces), "refusal": None},
            "logprobs": {"content": self._logprobs, "refusal": None} if with_logprobs else None,
            "finish_reason": end.reason,
            "stop_reason": end.stop,
        }


class _Stream:
    """One choice, as chunks."""

    def __init__(
        self, head: dict[str, Any], usage: dict[str, Any], index: int, *, with_logprobs: bool
    ) -> None:
        self._head = head
        self._usage = usage
        self._index = index
        self._with_logprobs = with_logprobs
        self._begun = False
        # Between two chunks only the text differs, so the rest is encoded once.
        self._before, self._after = self._chunk({"content": "\0"}).split(b'"\\u0000"')

    def say(self, events: list[ReplyEvent]) -> bytes:
        data = b""
        if not self._begun:
            data = self._chunk({"role": "assistant", "content": "", "refusal": None})
            self._begun = True
        deltas = [event for event in events if isinstance(event, TextDelta)]
        text = "".join([event.text for event in deltas])
        if text and self._with_logprobs:
            tokens = [_token(token) for event in deltas for token in event.logprobs]
            data += self._chunk({"content": text}, logprobs={"content": tokens, "refusal": None})
        elif text:
            data += self._before + orjson.dumps(text) + self._after
        last = events[-1]
        if isinstance(last, Finished):
            data += self._chunk({}, last.reason, stop_reason=last.stop)
        return data

    def _chunk(
        self,
        delta: dict[str, Any],
        finish: str | None = None,
        *,
        logprobs: dict[str, Any] | None = None,
        **more: Any,
    ) -> bytes:
        choice = {
            "index": self._index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
            **more,
        }
        return sse.event(orjson.dumps({**self._head, "choices": [choice], **self._usage}))


def _token(token: TokenLikelihood) -> dict[str, Any]:
    return {**_likelihood(token), "top_logprobs": [_likelihood(other) for other in token.best]}


def _likelihood(token: Likelihood) -> dict[str, Any]:
    text = token.text
    return {
        "token": spelled(token.token) if text is None else text,
        "logprob": max(token.logprob, UNLIKELY),
        "bytes": list(token.token),
    }

"""`POST /v1/chat/completions`.

Source: OpenAI's API reference, "The chat completion object" and "The chat completion chunk object".
"""

from typing import Any

import orjson

from shared import sse
from worker.api.chat_wire import ChatAsked, to_request
from worker.api.exchange import Exchange
from worker.api.validation import decode
from worker.completion import Completions, Reply
from worker.text.events import Finished, ReplyEvent, TextDelta, Usage


class Chat:
    """The route, for one loaded model. `fingerprint` names model, versions and backend."""

    def __init__(self, completions: Completions, fingerprint: str) -> None:
        self._completions = completions
        self._fingerprint = fingerprint

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), ChatAsked)
        request = to_request(asked)
        opened = self._completions.open(request, prefix="chatcmpl", stream=bool(asked.stream))
        with exchange.while_connected():
            async with opened as reply:
                if asked.stream:
                    await self._stream(exchange, reply, with_usage=asked.wants_usage)
                else:
                    await self._whole(exchange, reply)

    async def _whole(self, exchange: Exchange, reply: Reply) -> None:
        pieces: list[str] = []
        end: Finished | None = None
        async for events in reply.batches():
            pieces += [event.text for event in events if isinstance(event, TextDelta)]
            end = _finished(events)
        assert end is not None
        message = {"role": "assistant", "content": "".join(pieces), "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason}
        body = {**self._head(reply, "chat.completion"), "choices": [choice], "usage": _usage(end.usage)}
        await exchange.answer(200, orjson.dumps(body))

    async def _stream(self, exchange: Exchange, reply: Reply, *, with_usage: bool) -> None:
        head = self._head(reply, "chat.completion.chunk")
        usage = {"usage": None} if with_usage else {}

        def chunk(delta: dict[str, Any], finish: str | None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse.event(orjson.dumps({**head, "choices": [choice], **usage}))

        # Between two chunks only the text differs, so the rest is encoded once.
        before, after = chunk({"content": "\0"}, None).split(b'"\\u0000"')
        begun = False
        async for events in reply.batches():
            data = b""
            if not begun:
                # Not before the first token: until then an error can still be a status.
                await exchange.start_events()
                data = chunk({"role": "assistant", "content": "", "refusal": None}, None)
                begun = True
            text = "".join([event.text for event in events if isinstance(event, TextDelta)])
            if text:
                data += before + orjson.dumps(text) + after
            end = _finished(events)
            if end is None:
                await exchange.write(data)
                continue
            data += chunk({}, end.reason)
            if with_usage:
                last = {**head, "choices": [], "usage": _usage(end.usage)}
                data += sse.event(orjson.dumps(last))
            await exchange.finish(data + sse.DONE)

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        return {
            "id": reply.id,
            "object": kind,
            "created": reply.created,
            "model": self._completions.model_id,
            "system_fingerprint": self._fingerprint,
        }


def _finished(events: list[ReplyEvent]) -> Finished | None:
    last = events[-1]
    return last if isinstance(last, Finished) else None


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }

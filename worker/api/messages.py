"""`POST /v1/messages` and `POST /v1/messages/count_tokens`.

Source: Anthropic's API reference, "The Message object" and "Streaming messages".
"""

from collections.abc import Iterable
from typing import Any, Final

import orjson

from shared.errors import PublicError
from worker.api.exchange import Exchange, Headers
from worker.api.messages_blocks import Added, Blocks, Closed, Opened, Step
from worker.api.messages_cache import usage_object
from worker.api.messages_stream import MessageStream, empty_block
from worker.api.messages_wire import CountAsked, MessagesAsked, left_out, mark_of, prompt_of, to_request
from worker.api.session import in_session
from worker.api.structure_wire import warning_headers
from worker.api.validation import decode
from worker.completion import Completions
from worker.reply import Reply
from worker.text.events import Finished, Usage

_PREFIX: Final = "msg_"
# As the parts that all formats share name fields, and as this API does.
_FIELDS: Final = ((".function.parameters", ".input_schema"), ("tool_choice.function", "tool_choice"))

_TOLD_AT_THE_END: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
    "server_tool_use",
)


class Messages:
    """The routes, for one loaded model."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), MessagesAsked)
        request = in_session(to_request(asked), exchange)
        opened = self._completions.open(request, prefix=_PREFIX, stream=bool(asked.stream))
        with exchange.while_connected():
            try:
                async with opened as reply:
                    if asked.stream:
                        await self._stream(exchange, reply, asked)
                    else:
                        await self._whole(exchange, reply, asked)
            except PublicError as error:
                raise _in_its_words(error) from error

    async def count(self, exchange: Exchange) -> None:
        """Tokens of the prompt that the request would have, rendered as it would be."""
        request = prompt_of(decode(await exchange.body(), CountAsked))
        with exchange.while_connected():
            try:
                tokens = await self._completions.count(request)
            except PublicError as error:
                raise _in_its_words(error) from error
        await exchange.answer(200, orjson.dumps({"input_tokens": tokens}))

    async def _whole(self, exchange: Exchange, reply: Reply, asked: MessagesAsked) -> None:
        mark = mark_of(asked)
        blocks, answer = Blocks(), _Answer(shows_thinking=asked.shows_thinking)
        async for events in reply.batches():
            answer.take(blocks.take(events))
            if isinstance(end := events[-1], Finished):
                answer.take(blocks.finish())
                body = {
                    **self._message(reply.id, usage_object(end.usage, reply.written_tokens, mark)),
                    **_ending(end, asked),
                    "content": answer.content if asked.max_tokens else [],
                }
                await exchange.answer(200, orjson.dumps(body), _warnings(reply, asked))

    async def _stream(self, exchange: Exchange, reply: Reply, asked: MessagesAsked) -> None:
        mark = mark_of(asked)
        stream = MessageStream(shows_thinking=asked.shows_thinking)
        async for events in reply.batches():
            data = b""
            if not exchange.started:
                # Not before the first token: until then an error can still be a status.
                await exchange.start_events(_warnings(reply, asked))
                so_far = Usage(reply.prompt_tokens, 0, reply.cached_tokens)
                begun = usage_object(so_far, reply.written_tokens, mark)
                data = stream.begin(self._message(reply.id, begun))
            if asked.max_tokens:
                data += stream.say(events)
            end = events[-1]
            if not isinstance(end, Finished):
                await exchange.write(data)
                continue
            usage = usage_object(end.usage, reply.written_tokens, mark)
            told = {name: usage[name] for name in _TOLD_AT_THE_END}
            await exchange.finish(data + stream.end(_ending(end, asked), told))

    def _message(self, reply_id: str, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": reply_id,
            "type": "message",
            "role": "assistant",
            "model": self._completions.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }


def _warnings(reply: Reply, asked: MessagesAsked) -> Headers:
    return warning_headers([*reply.warnings, *filter(None, [left_out(asked)])])


class _Answer:
    """The blocks of a whole answer, gathered."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self.content: list[dict[str, Any]] = []
        self._shows_thinking = shows_thinking
        self._pieces: list[str] = []

    def take(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: Step) -> None:
        match step:
            case Opened():
                self.content.append(empty_block(step))
                self._pieces = []
            case Added(_, _, text):
                self._pieces.append(text)
            case Closed(broken=True):
                # One that was cut, or is no call: its text follows if there is any.
                self.content.pop()
            case Closed(_, kind, signature):
                block, text = self.content[-1], "".join(self._pieces)
                if kind == "text":
                    block["text"] = text
                elif kind == "thinking":
                    block |= {"thinking": text if self._shows_thinking else "", "signature": signature}
                else:
                    block["input"] = orjson.loads(text or "{}")


def _ending(end: Finished, asked: MessagesAsked) -> dict[str, Any]:
    """Why it ended, as the answer and the last delta say it."""
    matched = end.stop if isinstance(end.stop, str) else None
    reason = "end_turn" if matched is None else "stop_sequence"
    if end.reason == "tool_calls":
        reason = "tool_use"
    elif end.reason == "length":
        full = end.usage.completion < asked.max_tokens
        reason = "model_context_window_exceeded" if full else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": matched, "stop_details": None, "container": None}


def _in_its_words(error: PublicError) -> PublicError:
    """What other parts found wrong, with the fields' names in this API."""
    message, param = error.message, error.param
    for ours, theirs in _FIELDS:
        message = message.replace(ours, theirs)
        param = None if param is None else param.replace(ours, theirs)
    if error.code == "context_length_exceeded":
        # The words by which agents know that they should condense the conversation.
        message = f"prompt is too long: {message}"
    if (message, param) == (error.message, error.param):
        return error
    return PublicError(
        error.status,
        error.code,
        message,
        param=param,
        retry_after_s=error.retry_after_s,
        headers=error.extra_headers,
    )

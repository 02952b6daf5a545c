"""`POST /v1/chat/completions`.

Source: OpenAI's API reference, "The chat completion object" and "The chat completion chunk object"; with
`functions`, its deprecated `function_call` stands where a tool call would. Reasoning
comes under both names that clients know, `reasoning_content` and `reasoning`. `malformed_tool_call` is there,
and true, where the content has a tool call that does not parse, as the model wrote it.
`stop_reason` beside `finish_reason` is the stop sequence or token id of the request's that was matched, under
the name that vLLM gives it.
"""

import itertools
from typing import Any, Final

import orjson

from shared import sse
from shared.errors import PublicError
from worker.api.chat_wire import ChatAsked, to_request
from worker.api.exchange import Exchange
from worker.api.functions_wire import in_functions
from worker.api.logprobs_wire import token_object
from worker.api.session import in_session
from worker.api.structure_wire import warning_headers
from worker.api.usage import usage_object
from worker.api.validation import decode
from worker.completion import Completions
from worker.reply import Choices
from worker.text.events import Finished, ReplyEvent, TextDelta
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning

_MALFORMED: Final = {"malformed_tool_call": True}


class Chat:
    """The route, for one loaded model. `fingerprint` names model, versions and backend."""

    def __init__(self, completions: Completions, fingerprint: str) -> None:
        self._completions = completions
        self._fingerprint = fingerprint

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), ChatAsked)
        request = in_session(to_request(asked), exchange)
        opened = self._completions.open_all([request], prefix="chatcmpl", stream=bool(asked.stream))
        try:
            with exchange.while_connected():
                async with opened as choices:
                    if asked.stream:
                        await self._stream(exchange, choices, asked)
                    else:
                        await self._whole(exchange, choices, asked)
        except PublicError as error:
            raise (in_functions(error) if asked.calls_functions else error) from None

    async def _whole(self, exchange: Exchange, choices: Choices, asked: ChatAsked) -> None:
        answers = [_Answer() for _ in choices.replies]
        async for batch in choices.batches():
            for index, events in batch:
                answers[index].take(events)
        body = {
            **self._head(choices, "chat.completion", asked),
            "choices": [answer.choice(index, asked) for index, answer in enumerate(answers)],
            "usage": usage_object(choices.usage),
        }
        await exchange.answer(200, orjson.dumps(body), warning_headers(choices.warnings))

    async def _stream(self, exchange: Exchange, choices: Choices, asked: ChatAsked) -> None:
        head = self._head(choices, "chat.completion.chunk", asked)
        usage = {"usage": None} if asked.wants_usage else {}
        streams = [_Stream(head, usage, index, asked) for index in range(len(choices.replies))]
        async for batch in choices.batches():
            if not exchange.started:
                # Not before the first token: until then an error can still be a status.
                await exchange.start_events(warning_headers(choices.warnings))
            await exchange.write(b"".join([streams[index].say(events) for index, events in batch]))
        data = b""
        if asked.wants_usage:
            last = {**head, "choices": [], "usage": usage_object(choices.usage)}
            data = sse.event(orjson.dumps(last))
        await exchange.finish(data + sse.DONE)

    def _head(self, choices: Choices, kind: str, asked: ChatAsked) -> dict[str, Any]:
        # There is one tier; it is told to those who ask for any.
        tier = {} if asked.service_tier is None else {"service_tier": "default"}
        return {
            **tier,
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
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._malformed = False
        self._logprobs: list[dict[str, Any]] = []
        self._end: Finished | None = None

    def take(self, events: list[ReplyEvent]) -> None:
        for event in events:
            match event:
                case TextDelta():
                    self._pieces.append(event.text)
                    self._logprobs += map(token_object, event.logprobs)
                    self._malformed |= event.flagged
                case Reasoning():
                    self._reasoning.append(event.text)
                case CallBegan():
                    self._calls[event.index] = _Call(event.id, event.name)
                case CallArguments():
                    self._calls[event.index].arguments += event.delta
                case CallVoided():
                    del self._calls[event.index]
                case CallEnded() | CallCut():
                    # One that was cut is told as far as it came, as OpenAI does.
                    pass
                case Finished():
                    self._end = event

    def choice(self, index: int, asked: ChatAsked) -> dict[str, Any]:
        end = self._end
        assert end is not None
        text = "".join(self._pieces)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self._calls and not text else text,
            "refusal": None,
            "annotations": [],
        }
        if self._reasoning:
            message |= _reasoning("".join(self._reasoning))
        if self._calls and asked.calls_functions:
            message["function_call"] = next(iter(self._calls.values())).function()
        elif self._calls:
            message["tool_calls"] = [call.object() for call in self._calls.values()]
        if self._malformed:
            message |= _MALFORMED
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if asked.logprobs else None,
            "finish_reason": _finish(end.reason, asked),
            "stop_reason": end.stop,
        }


class _Call:
    """A tool call, gathered."""

    def __init__(self, call_id: str, name: str) -> None:
        self._id = call_id
        self._name = name
        self.arguments = ""

    def function(self) -> dict[str, Any]:
        return {"name": self._name, "arguments": self.arguments}

    def object(self) -> dict[str, Any]:
        return {"id": self._id, "type": "function", "function": self.function()}


class _Stream:
    """One choice, as chunks."""

    def __init__(self, head: dict[str, Any], usage: dict[str, Any], index: int, asked: ChatAsked) -> None:
        self._head = head
        self._usage = usage
        self._index = index
        self._asked = asked
        self._begun = False
        # Between two chunks only the text differs, so the rest is encoded once.
        self._before, self._after = self._chunk({"content": "\0"}).split(b'"\\u0000"')

    def say(self, events: list[ReplyEvent]) -> bytes:
        data = []
        if not self._begun:
            data.append(self._chunk({"role": "assistant", "content": "", "refusal": None}))
            self._begun = True
        for _, group in itertools.groupby(events, _kind):
            data.append(self._say_alike(list(group)))
        return b"".join(data)

    def _say_alike(self, events: list[ReplyEvent]) -> bytes:
        """Events of one kind, as one chunk."""
        match events[0]:
            case TextDelta(flagged=flagged):
                return self._content([event for event in events if isinstance(event, TextDelta)], flagged)
            case Reasoning():
                return self._chunk(
                    _reasoning("".join([event.text for event in events if isinstance(event, Reasoning)]))
                )
            case CallBegan(index, call_id, name):
                function = {"name": name, "arguments": ""}
                return self._call(function, {"index": index, "id": call_id, "type": "function"})
            case CallArguments(index):
                pieces = [event.delta for event in events if isinstance(event, CallArguments)]
                return self._call({"arguments": "".join(pieces)}, {"index": index})
            case Finished(reason, stop=stop):
                return self._chunk({}, _finish(reason, self._asked), stop_reason=stop)
        # The end of a call says nothing; that it does not parse is said with its text.
        return b""

    def _content(self, events: list[TextDelta], flagged: bool) -> bytes:
        text = "".join([event.text for event in events])
        delta = {"content": text, **(_MALFORMED if flagged else {})}
        if self._asked.logprobs:
            tokens = [token_object(token) for event in events for token in event.logprobs]
            return self._chunk(delta, logprobs={"content": tokens, "refusal": None})
        if flagged:
            return self._chunk(delta)
        return self._before + orjson.dumps(text) + self._after

    def _call(self, function: dict[str, Any], call: dict[str, Any]) -> bytes:
        if self._asked.calls_functions:
            return self._chunk({"function_call": function})
        return self._chunk({"tool_calls": [{**call, "function": function}]})

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


def _kind(event: ReplyEvent) -> tuple[object, ...]:
    """Neighbours of the same kind can be told together."""
    match event:
        case TextDelta():
            return (TextDelta, event.flagged)
        case CallBegan() | CallArguments():
            return (type(event), event.index)
    return (type(event),)


def _finish(reason: str, asked: ChatAsked) -> str:
    return "function_call" if reason == "tool_calls" and asked.calls_functions else reason


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning_content": text, "reasoning": text}

"""Reply events to the items of a response, and to the events of its stream.

Both come from one place, so a stream tells the very items that the whole answer has.
Source: OpenAI's API reference, "Responses: streaming events".
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import orjson

from shared import sse
from shared.responses.answer import event
from shared.responses.items import Item, Status, item_id
from shared.responses.sealed import seal
from worker.api.logprobs_wire import token_object
from worker.text.events import ReplyEvent, TextDelta
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning

Fields = dict[str, Any]
_Named = tuple[str, Fields]
"""An event's name and fields, without its number."""


class Output:
    """The output items of one response as they come. `number` is of the next event.

    `called` gives the fields that name a function, of the name that the model knows it by.
    """

    def __init__(
        self, *, number: int, as_summary: bool, sealed: bool, called: Callable[[str], dict[str, str]]
    ) -> None:
        self.number = number
        self.items: list[Item] = []
        """Those that are complete, or as complete as they get."""
        self._as_summary = as_summary
        self._sealed = sealed
        self._called = called
        self._open: _Message | _Thinking | _Call | None = None

    def take(self, events: Iterable[ReplyEvent]) -> bytes:
        """Some more of the reply, as events of the stream."""
        return b"".join(
            [self._take_alike(kind, list(group)) for kind, group in itertools.groupby(events, type)]
        )

    def close(self, status: Status) -> bytes:
        """Nothing more comes: end the item that is open."""
        item, self._open = self._open, None
        if item is None:
            return b""
        self.items.append(item.whole(status))
        return self._tell(item.closing(status))

    def say(self, name: str, fields: Fields) -> bytes:
        """One numbered event."""
        number, self.number = self.number, self.number + 1
        return event(name, {"sequence_number": number, **fields})

    def _take_alike(self, kind: type[ReplyEvent], events: list[Any]) -> bytes:
        if kind is TextDelta:
            return self._text(events)
        if kind is Reasoning:
            return self._thought("".join([event.text for event in events]))
        if kind is CallArguments:
            return self._arguments("".join([event.delta for event in events]))
        return b"".join([self._call(event) for event in events])

    def _text(self, events: list[TextDelta]) -> bytes:
        data = b""
        if not isinstance(self._open, _Message):
            data = self._begin(_Message(len(self.items) + (self._open is not None)))
        assert isinstance(self._open, _Message)
        logprobs = [token_object(token) for event in events for token in event.logprobs]
        number, self.number = self.number, self.number + 1
        return data + self._open.more("".join([event.text for event in events]), logprobs, number)

    def _thought(self, text: str) -> bytes:
        data = b""
        if not isinstance(self._open, _Thinking):
            index = len(self.items) + (self._open is not None)
            data = self._begin(_Thinking(index, as_summary=self._as_summary, sealed=self._sealed))
        assert isinstance(self._open, _Thinking)
        number, self.number = self.number, self.number + 1
        return data + self._open.more(text, number)

    def _call(self, event: ReplyEvent) -> bytes:
        match event:
            case CallBegan(_, call_id, name):
                index = len(self.items) + (self._open is not None)
                return self._begin(_Call(index, call_id, self._called(name)))
            case CallEnded():
                return self.close("completed")
            case CallVoided():
                # It was told already; its text follows as the model wrote it.
                return self.close("incomplete")
            case CallCut():
                return self.close("incomplete") if isinstance(self._open, _Call) else b""
        return b""

    def _arguments(self, delta: str) -> bytes:
        assert isinstance(self._open, _Call)
        number, self.number = self.number, self.number + 1
        return self._open.more(delta, number)

    def _begin(self, item: "_Message | _Thinking | _Call") -> bytes:
        data = self.close("completed")
        self._open = item
        return data + self._tell(item.opening())

    def _tell(self, events: list[_Named]) -> bytes:
        return b"".join([self.say(name, fields) for name, fields in events])


class _Delta:
    """Events that differ in number and text only, so the rest is encoded once."""

    def __init__(self, name: str, fields: Fields) -> None:
        kind = f"response.{name}.delta"
        known = orjson.dumps({"type": kind, **fields}).removesuffix(b"}")
        self._before = b"event: " + kind.encode() + b"\ndata: " + known + b',"sequence_number":'

    def __call__(self, number: int, text: str, rest: bytes = b"") -> bytes:
        return b'%b%d,"delta":%b%b}\n\n' % (self._before, number, orjson.dumps(text), rest)


class _Message:
    """What the model says."""

    def __init__(self, index: int) -> None:
        self._id = item_id("message")
        self._index = index
        self._pieces: list[str] = []
        self._logprobs: list[Item] = []
        self._place: Final = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._delta = _Delta("output_text", self._place)

    def opening(self) -> list[_Named]:
        item = {**self.whole("in_progress"), "content": []}
        return [
            ("response.output_item.added", {"output_index": self._index, "item": item}),
            ("response.content_part.added", {**self._place, "part": self._part()}),
        ]

    def more(self, text: str, logprobs: list[Item], number: int) -> bytes:
        self._pieces.append(text)
        if not logprobs:
            return self._delta(number, text, b',"logprobs":[]')
        self._logprobs += logprobs
        return self._delta(number, text, b',"logprobs":' + orjson.dumps(logprobs))

    def closing(self, status: Status) -> list[_Named]:
        part = self._part()
        done = {**self._place, "text": part["text"], "logprobs": part["logprobs"]}
        return [
            ("response.output_text.done", done),
            ("response.content_part.done", {**self._place, "part": part}),
            ("response.output_item.done", {"output_index": self._index, "item": self.whole(status)}),
        ]

    def whole(self, status: Status) -> Item:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> Item:
        text = "".join(self._pieces)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}


class _Thinking:
    """What the model thinks, told as itself or as its summary."""

    def __init__(self, index: int, *, as_summary: bool, sealed: bool) -> None:
        self._id = item_id("reasoning")
        self._index = index
        self._sealed = sealed
        self._pieces: list[str] = []
        self._kind: Literal["summary", "content"] = "summary" if as_summary else "content"
        self._place: Final = {"item_id": self._id, "output_index": index, f"{self._kind}_index": 0}
        self._name = "reasoning_summary_text" if as_summary else "reasoning_text"
        self._part_name = "reasoning_summary_part" if as_summary else "content_part"
        self._delta = _Delta(self._name, self._place)

    def opening(self) -> list[_Named]:
        item = {"id": self._id, "type": "reasoning", "status": "in_progress", "summary": []}
        return [
            ("response.output_item.added", {"output_index": self._index, "item": item}),
            (f"response.{self._part_name}.added", {**self._place, "part": self._part()}),
        ]

    def more(self, text: str, number: int) -> bytes:
        self._pieces.append(text)
        return self._delta(number, text)

    def closing(self, status: Status) -> list[_Named]:
        part = self._part()
        return [
            (f"response.{self._name}.done", {**self._place, "text": part["text"]}),
            (f"response.{self._part_name}.done", {**self._place, "part": part}),
            ("response.output_item.done", {"output_index": self._index, "item": self.whole(status)}),
        ]

    def whole(self, status: Status) -> Item:
        item: Item = {"id": self._id, "type": "reasoning", "status": status, "summary": []}
        item[self._kind] = [self._part()]
        if self._sealed:
            item["encrypted_content"] = seal("".join(self._pieces))
        return item

    def _part(self) -> Item:
        kind = "summary_text" if self._kind == "summary" else "reasoning_text"
        return {"type": kind, "text": "".join(self._pieces)}


class _Call:
    """A function that the model calls."""

    def __init__(self, index: int, call_id: str, function: dict[str, str]) -> None:
        self._id = item_id("function_call")
        self._index = index
        self._call_id = call_id
        self._function = function
        self._pieces: list[str] = []
        self._place: Final = {"item_id": self._id, "output_index": index}
        self._delta = _Delta("function_call_arguments", self._place)

    def opening(self) -> list[_Named]:
        added = {"output_index": self._index, "item": self.whole("in_progress")}
        return [("response.output_item.added", added)]

    def more(self, delta: str, number: int) -> bytes:
        self._pieces.append(delta)
        return self._delta(number, delta)

    def closing(self, status: Status) -> list[_Named]:
        arguments = "".join(self._pieces)
        done = {**self._place, "name": self._function["name"], "arguments": arguments}
        return [
            ("response.function_call_arguments.done", done),
            ("response.output_item.done", {"output_index": self._index, "item": self.whole(status)}),
        ]

    def whole(self, status: Status) -> Item:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "arguments": "".join(self._pieces),
            "call_id": self._call_id,
            **self._function,
        }


END: Final = sse.DONE
"""OpenAI's own streams end without it; clients of compatible servers wait for it, and the others skip it."""

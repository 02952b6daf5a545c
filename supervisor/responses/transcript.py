"""What a worker says of one response, followed as far as it must be kept.

Most events are passed on unread. Those that are read: the one that begins the response, those that end an
item, and the one that ends it all.
"""

from typing import Final

import orjson

from shared.errors import PublicError
from shared.responses.answer import Response, error_event, failed, lifecycle_event
from shared.responses.items import Item

EVENT_END: Final = b"\n\n"
_ENDINGS: Final = (
    b"event: response.completed\n",
    b"event: response.incomplete\n",
    b"event: response.failed\n",
)
_ITEM: Final = b"event: response.output_item.done\n"
_ITEM_BEGAN: Final = b"event: response.output_item.added\n"
_BEGINNING: Final = b"event: response.created\n"
_COMMENT: Final = b":"


class Transcript:
    """`response` is what is known of it; None until the worker has said it. `number` is of the last event."""

    def __init__(self, response: Response | None = None, number: int = -1) -> None:
        self.response = response
        self.ended = False
        self.number = number
        self.warnings: tuple[str, ...] = ()
        """What the worker warned of in the headers of its answer."""
        self._items: list[Item] = []
        self._open: list[bytes] = []
        """Events of the item that has begun and not ended."""
        self._rest = b""
        self._last = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are whole now, each with its end, comments left out."""
        data = self._rest + data if self._rest else data
        *frames, self._rest = data.split(EVENT_END)
        events = [frame + EVENT_END for frame in frames if frame and not frame.startswith(_COMMENT)]
        for event in events:
            self._note(event)
        return events

    def fail(self, error: PublicError) -> bytes:
        """The event that ends a response whose worker failed."""
        number = self._end()
        if self.response is None:
            return error_event(error, number)
        self.response = failed({**self.response, "output": self._items}, error)
        return lifecycle_event("response.failed", self.response, number)

    def stop(self) -> bytes:
        """The event that ends a response which was cancelled."""
        number = self._end()
        assert self.response is not None
        self.response = {**self.response, "status": "cancelled", "output": self._items}
        # There is no event of its own for it.
        return lifecycle_event("response.failed", self.response, number)

    def _end(self) -> int:
        """Take what has come of the open item for all of it. Returns the number of the event that tells."""
        self.ended = True
        if self._open:
            self._items.append(_so_far(self._open))
        if self._last:
            self.number = orjson.loads(payload(self._last)).get("sequence_number", self.number)
        self.number += 1
        return self.number

    def _note(self, event: bytes) -> None:
        if not event.startswith(b"event: "):
            return
        self._last = event
        if event.startswith(_ITEM):
            self._items.append(orjson.loads(payload(event))["item"])
            self._open = []
        elif event.startswith(_ITEM_BEGAN):
            self._open = [event]
        elif event.startswith(_ENDINGS):
            self.response = orjson.loads(payload(event))["response"]
            self.ended = True
        elif event.startswith(_BEGINNING):
            self.response = orjson.loads(payload(event))["response"]
        elif self._open:
            self._open.append(event)


def _so_far(events: list[bytes]) -> Item:
    """An item that was cut, from its events."""
    began, *rest = (orjson.loads(payload(event)) for event in events)
    text = "".join(event["delta"] for event in rest if event["type"].endswith(".delta"))
    item: Item = {**began["item"], "status": "incomplete"}
    match item["type"]:
        case "message":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            return {**item, "content": [part]}
        case "function_call":
            return {**item, "arguments": text}
        case _:
            told = any("summary" in event["type"] for event in rest)
            kind, name = ("summary", "summary_text") if told else ("content", "reasoning_text")
            return {**item, kind: [{"type": name, "text": text}]}


def payload(event: bytes) -> bytes:
    """The JSON of an event as we write them: one line of data."""
    return event.partition(b"\ndata: ")[2].rstrip(b"\n")

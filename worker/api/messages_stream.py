"""A streamed message: the steps of its blocks as Anthropic's events.

Order: `message_start`; for each block `content_block_start`, its deltas and `content_block_stop`;
`message_delta`; `message_stop`. One `ping` follows the first `content_block_start`, as it does there.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from shared import sse
from worker.api.messages_blocks import Added, Blocks, Closed, Kind, Opened, Step
from worker.text.events import ReplyEvent

PING: Final = sse.event(b'{"type":"ping"}', "ping")
_DELTAS: Final[dict[Kind, tuple[str, str]]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class MessageStream:
    """The events of one message."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._blocks = Blocks()
        self._shows_thinking = shows_thinking
        self._pinged = False
        # Between two deltas of a block only the text differs, so the rest is encoded once.
        self._before = b""

    def begin(self, message: dict[str, Any]) -> bytes:
        """`message` is the whole object, as yet without content."""
        return _event("message_start", message=message)

    def say(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join(map(self._step, self._blocks.take(events)))

    def end(self, delta: dict[str, Any], usage: dict[str, Any]) -> bytes:
        """Close what is open, and tell why it ended."""
        closing = b"".join(map(self._step, self._blocks.finish()))
        return closing + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def _step(self, step: Step) -> bytes:
        match step:
            case Opened():
                return self._open(step)
            case Added(_, "thinking") if not self._shows_thinking:
                return b""
            case Added(_, _, text):
                return self._before + orjson.dumps(text) + b"}}\n\n"
            case Closed(index, "thinking", signature):
                signed = _event(
                    "content_block_delta",
                    index=index,
                    delta={"type": "signature_delta", "signature": signature},
                )
                return signed + _event("content_block_stop", index=index)
            case Closed(index):
                return _event("content_block_stop", index=index)

    def _open(self, step: Opened) -> bytes:
        kind, field = _DELTAS[step.kind]
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (step.index, kind.encode(), field.encode())
        )
        data = _event("content_block_start", index=step.index, content_block=empty_block(step))
        if not self._pinged:
            self._pinged = True
            data += PING
        return data


def empty_block(step: Opened) -> dict[str, Any]:
    """A block as it begins."""
    match step.kind:
        case "text":
            return {"type": "text", "text": "", "citations": None}
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_use":
            return {
                "type": "tool_use",
                "id": step.id,
                "name": step.name,
                "input": {},
                "caller": {"type": "direct"},
            }


def _event(kind: str, **fields: Any) -> bytes:
    return sse.event(orjson.dumps({"type": kind, **fields}), kind)

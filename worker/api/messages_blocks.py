"""Reply events to content blocks: which one is open, and what is added to it.

Streamed and whole answers are both made of these steps. Blocks do not overlap and have no holes: white space
before, between and after thinking and calls is no block of its own.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from worker.text.events import ReplyEvent, TextDelta
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallVoided, Reasoning

_GOOD_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOOL_ID: Final = "toolu_"

Kind = Literal["text", "thinking", "tool_use"]


class Opened(msgspec.Struct, frozen=True):
    index: int
    kind: Kind
    id: str = ""
    """Of the call."""
    name: str = ""
    """Of the tool."""


class Added(msgspec.Struct, frozen=True):
    """Text, thinking, or JSON of the input, as the open block has it."""

    index: int
    kind: Kind
    text: str


class Closed(msgspec.Struct, frozen=True):
    index: int
    kind: Kind
    signature: str = ""
    """Of thinking."""
    broken: bool = False
    """It is a call that came to nothing."""


Step = Opened | Added | Closed


class Blocks:
    """The blocks of one answer."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: Kind | None = None
        self._space = ""
        """White space that will be text if more of it follows."""
        self._digest = hashlib.sha256()

    @property
    def count(self) -> int:
        return self._index + 1

    def take(self, events: Sequence[ReplyEvent]) -> Iterator[Step]:
        """The steps that `events` bring; neighbours that add to one block are one step."""
        pending: list[str] = []
        kind: Kind | None = None
        for event in events:
            match event:
                case TextDelta(text):
                    now: Kind = "text"
                case Reasoning(text):
                    now = "thinking"
                case CallArguments(_, text):
                    now = "tool_use"
                case _:
                    yield from self._add(kind, pending)
                    pending, kind = [], None
                    yield from self._turn(event)
                    continue
            if now != kind:
                yield from self._add(kind, pending)
                pending, kind = [], now
            pending.append(text)
        yield from self._add(kind, pending)

    def finish(self) -> Iterator[Step]:
        """The end of the answer."""
        space, self._space = self._space, ""
        if space and self._index < 0:
            # It is all there is.
            yield from self._open("text")
            yield Added(self._index, "text", space)
        yield from self._close()

    def _turn(self, event: ReplyEvent) -> Iterator[Step]:
        match event:
            case CallBegan(_, call_id, name):
                yield from self._open("tool_use", tool_id(call_id), name)
            case CallVoided() | CallCut():
                if self._kind == "tool_use":
                    yield from self._close(broken=True)
            case _:
                # The end of a call is told by what follows, that of the answer by `finish`.
                pass

    def _add(self, kind: Kind | None, pieces: Sequence[str]) -> Iterator[Step]:
        text = "".join(pieces)
        if kind is None or not text:
            return
        if kind != self._kind:
            if kind == "text":
                text, self._space = self._space + text, ""
                if text.isspace():
                    self._space = text
                    return
            if kind == "tool_use":
                # Of a call that is closed already.
                return
            yield from self._open(kind)
        if kind == "thinking":
            self._digest.update(text.encode("utf-8", "surrogatepass"))
        yield Added(self._index, kind, text)

    def _open(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[Step]:
        yield from self._close()
        self._space = ""
        self._index += 1
        self._kind = kind
        self._digest = hashlib.sha256()
        yield Opened(self._index, kind, call_id, name)

    def _close(self, *, broken: bool = False) -> Iterator[Step]:
        kind, self._kind = self._kind, None
        if kind is None:
            return
        signature = ""
        if kind == "thinking":
            signature = base64.b64encode(self._digest.digest()).decode()
        yield Closed(self._index, kind, signature, broken)


def tool_id(call_id: str) -> str:
    """The id of a call as Anthropic's clients know it. Models have their own, some with dots and colons."""
    if not _GOOD_ID.fullmatch(call_id):
        return _TOOL_ID + secrets.token_hex(12)
    return _TOOL_ID + call_id.removeprefix("call_") if call_id.startswith("call_") else call_id

"""One syntax for tool calls: how to read it, and the grammar that forces it."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from worker.text.sentinels import Sentinels
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Steps
from worker.text.toolcalls.tools import Tool


class Thought(msgspec.Struct, frozen=True):
    """Markup around thinking; see Thinking, which has the same for all other models."""

    start: str
    end: str
    closings: tuple[str, ...]


class Family(ABC):
    """A call syntax, bound to the markers of one model. Holds no state of a reply."""

    markers: ClassVar[tuple[str, ...]] = ()
    """Control markers of the syntax, which may be sentinel tokens of the model."""

    always: ClassVar[bool] = False
    """Whether it reads replies to requests without tools too, because it is the format of all replies."""

    thought: ClassVar[Thought | None] = None
    """How thinking is marked in a format of all replies."""

    def __init__(self, sentinels: Sentinels) -> None:
        self.sentinels = sentinels

    @property
    def begins(self) -> tuple[str, ...]:
        """Sentinel tokens, as parsers read them, that can only be the beginning of a call."""
        return ()

    @abstractmethod
    def read(self, reader: Reader) -> Steps[None]:
        """Parse a reply, content and calls, without end: the reader says when the reply is over."""

    @abstractmethod
    def grammar(self, tools: Sequence[Tool], *, many: bool) -> str:
        """A Lark grammar in llguidance's dialect for one call of one of `tools`, or several with `many`."""

    def new_id(self) -> str:
        """The id of a call whose syntax has none."""
        return f"call_{secrets.token_hex(12)}"

    def instructions(self, tools: Sequence[Tool]) -> str | None:
        """What to put into the system message; None where the chat template takes care of the tools."""
        return None

    def answer_prefix(self) -> str:
        """What comes before an answer that a grammar forces: the body of a rule, then rules it needs."""
        return ""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Markers, as parsers read them, that structure a reply and say nothing."""
        return ()


class Plain(Family):
    """No calls: everything is content."""

    def read(self, reader: Reader) -> Steps[None]:
        yield from reader.content_until()

    def grammar(self, tools: Sequence[Tool], *, many: bool) -> str:
        raise NotImplementedError("a reply without calls has no grammar of calls")


class MarkedFamily(Family):
    """A syntax whose calls stand between a start and an end marker."""

    start: ClassVar[str]
    end: ClassVar[str]

    def __init__(self, sentinels: Sentinels) -> None:
        super().__init__(sentinels)
        self._start = sentinels.encode(self.start)
        self._end = sentinels.encode(self.end)

    @property
    def begins(self) -> tuple[str, ...]:
        return (self._start,) if self.sentinels.is_token(self.start) else ()

    def read(self, reader: Reader) -> Steps[None]:
        while True:
            yield from reader.content_until(self._start)
            yield from reader.attempt(self._marked(reader), self._end)

    def _marked(self, reader: Reader) -> Steps[None]:
        yield from reader.expect(self._start)
        yield from self.body(reader)
        yield from reader.space()
        if not (yield from reader.next_is(self._start)):
            yield from reader.expect(self._end)

    @abstractmethod
    def body(self, reader: Reader) -> Steps[None]:
        """Parse what stands between the markers: one call or several."""

"""One syntax for tool calls: how to read it, and the grammar that forces it."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, final

import msgspec

from worker.text.grammar.lark import Grammar, Rule
from worker.text.sentinels import Sentinels
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Steps
from worker.text.toolcalls.tools import Tool

ANSWER: Final = Rule("@answer")
"""What a grammar of replies calls the grammar of the answer."""


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

    answer_head: ClassVar[str] = ""
    """Markup right before the answer in a format of all replies."""

    mixes: ClassVar[bool] = True
    """Whether a grammar can leave the choice between calls and an answer: they begin differently."""

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
    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        """The rule for one call of one of `tools`, or several with `many`."""

    def preamble(self, grammar: Grammar) -> Rule | None:
        """The rule for what a format of all replies has before calls and answers."""
        return None

    @final
    def forced_calls(self, tools: Sequence[Tool], *, many: bool) -> str:
        """The grammar of a reply that has to call."""
        grammar = Grammar(self.sentinels)
        return grammar.start(*self._before(grammar), self.calls(grammar, tools, many=many))

    @final
    def forced_answer(self) -> str:
        """The grammar of a reply around an answer that a grammar forces, which it refers to as ANSWER.

        Empty where a reply has nothing but the answer.
        """
        grammar = Grammar(self.sentinels)
        before = self._before(grammar)
        return grammar.start(*before, self.answer_head, ANSWER) if before or self.answer_head else ""

    @final
    def calls_or_answer(self, tools: Sequence[Tool], *, many: bool) -> str:
        """The grammar of a reply that either calls or gives an ANSWER."""
        grammar = Grammar(self.sentinels)
        before = self._before(grammar)
        answer = grammar.sequence(self.answer_head, ANSWER)
        return grammar.start(*before, grammar.any_of([self.calls(grammar, tools, many=many), answer]))

    def _before(self, grammar: Grammar) -> list[Rule]:
        preamble = self.preamble(grammar)
        return [] if preamble is None else [preamble]

    def new_id(self) -> str:
        """The id of a call whose syntax has none."""
        return f"call_{secrets.token_hex(12)}"

    def instructions(self, tools: Sequence[Tool]) -> str | None:
        """What to put into the system message; None where the chat template takes care of the tools."""
        return None

    @property
    def dropped(self) -> tuple[str, ...]:
        """Markers, as parsers read them, that structure a reply and say nothing."""
        return ()


class Plain(Family):
    """No calls: everything is content."""

    def read(self, reader: Reader) -> Steps[None]:
        yield from reader.content_until()

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
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

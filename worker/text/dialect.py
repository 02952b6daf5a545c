"""How one model writes: its control markers, its thinking and its tool calls."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from shared.errors import invalid
from worker.text.grammar.schema import check
from worker.text.grammar.spec import Spec
from worker.text.pieces import Piece
from worker.text.sentinels import Sentinels
from worker.text.thinking import Thinking, select_thinking
from worker.text.thinking_gate import Gate, Marker, ThinkingTokens, TokenBytes
from worker.text.toolcalls.family import Family, Plain, Thought
from worker.text.toolcalls.reader import Marks, Reader
from worker.text.toolcalls.select import select_family
from worker.text.toolcalls.source import Ended, Steps
from worker.text.toolcalls.tools import Tool, Tools

Encode = Callable[[str], Sequence[int]]
"""Tokens of markup, nothing added."""


class Dialect:
    """Made once for a model and shared by all its replies. `tokenizer` is mlx-lm's wrapper.

    `template` is the source of its chat template, where the tokenizer does not have it.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        template = _template_of(tokenizer) if template is None else template
        family = select_family(tokenizer, template)
        thinking = None if family.always else select_thinking(tokenizer, template)
        encode = partial(tokenizer.encode, add_special_tokens=False)
        self._bind(tokenizer.get_vocab(), family, thinking, encode)

    @classmethod
    def of(
        cls, vocabulary: Mapping[str, int], family: type[Family], thinking: Thinking | None, encode: Encode
    ) -> "Dialect":
        """A dialect of known parts, for whoever needs no inference."""
        dialect = cls.__new__(cls)
        dialect._bind(vocabulary, family, thinking, encode)
        return dialect

    def _bind(
        self, vocabulary: Mapping[str, int], family: type[Family], thinking: Thinking | None, encode: Encode
    ) -> None:
        atoms = thinking.atoms if thinking else ()
        self.sentinels = Sentinels(vocabulary, (*family.markers, *atoms))
        self.family = family(self.sentinels)
        self.thinking = thinking
        marked = self.sentinels.encode
        self._plain = Plain(self.sentinels)
        self._thinking_tokens = self._in_tokens(thinking or self.family.thought, encode)
        self._marks = Marks(
            think_start=marked(thinking.start) if thinking else None,
            think_end=marked(thinking.end) if thinking else None,
            dropped=self.family.dropped,
        )

    def answer(self, spec: Spec) -> Spec:
        """The constraint of an answer, with what this model's replies have around it."""
        return msgspec.structs.replace(spec, reply=self.family.forced_answer(), spans=self.family.always)

    def calls_or_answer(self, spec: Spec, tools: Sequence[Mapping[str, Any]], *, many: bool = True) -> Spec:
        """The constraint to either call tools or give an answer as `spec` has it.

        In a syntax that has no marks for calls it is just that of the answer. Raises PublicError 400.
        """
        known = _checked(tools)
        if not known or not self.family.mixes:
            return self.answer(spec)
        reply = self.family.calls_or_answer(known, many=many)
        return msgspec.structs.replace(spec, reply=reply, spans=self.family.always)

    def forced_calls(
        self, tools: Sequence[Mapping[str, Any]], *, name: str | None = None, many: bool = True
    ) -> Spec:
        """The constraint to call tools: any of them, or the one with this name; with `many` several times.

        Raises PublicError 400 that names the field.
        """
        known = _checked(tools)
        if not known:
            raise invalid("A call can't be required without tools to call.", param="tool_choice")
        chosen = known if name is None else [tool for tool in known if tool.name == name]
        if not chosen:
            raise invalid(f"`tools` has no function named {name!r}.", param="tool_choice.function.name")
        grammar = self.family.forced_calls(chosen, many=many)
        return Spec("calls", grammar, param="tools", spans=self.family.always)

    @property
    def thinks(self) -> bool:
        """Whether its replies may have thinking in them."""
        return self._thinking_tokens is not None

    def thinks_after(self, prompt: str) -> bool:
        """Whether a prompt with this text ends inside an open block of thinking."""
        return self.thinking is not None and self.thinking.open_after(prompt)

    def gate(self, prompt: str, token_bytes: TokenBytes, *, budget: int | None = None) -> Gate | None:
        """What follows the thinking of a row, for its constraint or its budget in tokens.

        `prompt` is the text of the prompt. None where no thinking will come.
        """
        if self._thinking_tokens is None or (self.thinking and self.thinking.over_after(prompt)):
            return None
        return Gate(self._thinking_tokens, token_bytes, opened=self.thinks_after(prompt), budget=budget)

    def _in_tokens(self, thought: Thinking | Thought | None, encode: Encode) -> ThinkingTokens | None:
        if thought is None:
            return None
        start, end = (Marker(self.sentinels.token(m), m.encode()) for m in (thought.start, thought.end))
        opening = (start.token,) if start.token is not None else tuple(encode(thought.start))
        return ThinkingTokens(start, end, opening, tuple(tuple(encode(text)) for text in thought.closings))

    def splitter(
        self,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        calls: bool = True,
        forced: bool = False,
        thinking: bool = False,
        new_id: Callable[[], str] | None = None,
    ) -> "Splitter":
        """For one reply. `tools` are the request's; without `calls` their markup is content, and with
        `forced` a grammar makes the reply calls.

        `thinking` says that the prompt ends inside an open block. `new_id` makes the ids of calls that the
        model gives none, in place of the family's own.
        """
        family = self.family if (tools and calls) or self.family.always else self._plain
        reader = Reader(
            self.sentinels,
            Tools(tools),
            new_id or family.new_id,
            marks=self._marks,
            interrupts=family.begins,
            forced=forced,
        )
        return Splitter(self.sentinels, family, reader, thinking=thinking and self.thinking is not None)


class Splitter:
    """Takes one reply apart, token by token. What comes out does not depend on how the text was cut."""

    def __init__(self, sentinels: Sentinels, family: Family, reader: Reader, *, thinking: bool) -> None:
        self.reasoning_tokens = 0
        """Tokens that came between the markers of thinking."""
        self._sentinels = sentinels
        self._reader = reader
        self._steps: Steps[None] | None = _whole_reply(family, reader, thinking=thinking)
        self._advance()

    @property
    def thinking(self) -> bool:
        """Whether the model is thinking now."""
        return self._reader.thinking

    def push(self, token: int, text: str) -> list[Piece]:
        """The pieces that a token brings. `text` is what the detokenizer says; it may be empty."""
        before = self._reader.thinking
        pieces = self.push_text(self._sentinels.take(token, text))
        if before and self._reader.thinking:
            self.reasoning_tokens += 1
        return pieces

    def push_text(self, text: str) -> list[Piece]:
        """Take text in which sentinel tokens stand as `Sentinels.take` puts them."""
        if text:
            self._reader.feed(text)
            self._advance()
        return self._reader.collect()

    def finish(self, *, cut: bool) -> list[Piece]:
        """What is left when the reply is over; `cut` when the token limit ended it."""
        self._reader.end()
        self._advance()
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._reader.settle(cut=cut)
        return self._reader.collect()

    def _advance(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except Ended:
                self._steps = None


def _whole_reply(family: Family, reader: Reader, *, thinking: bool) -> Steps[None]:
    if thinking:
        yield from reader.think_marked()
    yield from family.read(reader)


def _template_of(tokenizer: Any) -> str:
    """The source of the chat template; of all of them, where a model has one for each purpose."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""


def _checked(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """The functions among the tools. Raises PublicError 400 for parameters that are no schema."""
    known = Tools(tools).all
    for index, tool in enumerate(known):
        check(tool.parameters, f"tools[{index}].function.parameters")
    return known

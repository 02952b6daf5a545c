"""Calls written as a list of Python calls: LFM2 between markers, Llama 3.2 and 4 without.

<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>
"""

import re
from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import Family, MarkedFamily
from worker.text.toolcalls.json_call import json_calls
from worker.text.toolcalls.json_text import dumps
from worker.text.toolcalls.literals import literal, separated
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import SPACE, Malformed, NotACall, Steps
from worker.text.toolcalls.tagged import Arguments
from worker.text.toolcalls.tools import Tool
from worker.text.toolcalls.values import types_of

_NAME: Final = re.compile(r"[\w.\-]")
_LETTER: Final = re.compile(r"[A-Za-z_]")
_CONSTANTS: Final = ("True", "False", "None", "true", "false", "null")


def python_calls(reader: Reader) -> Steps[None]:
    """A list of calls, behind its opening bracket."""
    yield from separated(reader, "]", lambda: python_call(reader))


def python_call(reader: Reader, *, known: bool = False) -> Steps[None]:
    """`name(key=value, ...)`. With `known`, only a tool of the request, also as `name.call(...)`."""
    name = yield from reader.matching(_NAME)
    yield from reader.expect("(")
    if known:
        name = name if name in reader.tools else name.removesuffix(".call")
        if name not in reader.tools:
            raise NotACall
    arguments = Arguments(reader, name, "text")

    def argument() -> Steps[None]:
        key = yield from reader.matching(_NAME)
        yield from reader.space()
        yield from reader.expect("=")
        yield from reader.space()
        if not key:
            raise Malformed("an argument without a name")
        arguments.member(key, (yield from _value(reader)))

    yield from separated(reader, ")", argument)
    arguments.end()


def _value(reader: Reader) -> Steps[str]:
    first = yield from reader.peek()
    if not _LETTER.match(first or " ") or (yield from reader.next_is(*_CONSTANTS)):
        return (yield from literal(reader))
    # Small models forget the quotes.
    text, end = yield from reader.until(",", ")")
    reader.give_back(end)
    return dumps(reader.spell(text).strip())


class _PythonGrammar:
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def calls(self, tools: Sequence[Tool], *, many: bool) -> Rule:
        one = self._grammar.any_of([self._call(tool) for tool in tools])
        return self._grammar.sequence("[", self._grammar.repeated(one, many=many, between=", "), "]")

    def _call(self, tool: Tool) -> Rule:
        required: list[Rule] = []
        optional: list[Rule] = []
        for name, schema in tool.properties.items():
            if types_of(schema) == {"boolean"} and "enum" not in schema and "const" not in schema:
                value = self._grammar.rule('"True" | "False"')
            else:
                value = self._grammar.json(schema, tool.parameters)
            argument = self._grammar.sequence(f"{name}=", value)
            (required if name in tool.required else optional).append(argument)
        return self._grammar.sequence(f"{tool.name}(", self._grammar.separated(required, optional, ", "), ")")


class Pythonic(MarkedFamily):
    """mlx-lm's `pythonic`. LFM2 can be asked for JSON calls between the same markers."""

    markers = ("<|tool_call_start|>", "<|tool_call_end|>")
    start, end = markers

    def body(self, reader: Reader) -> Steps[None]:
        yield from reader.space()
        if (yield from reader.next_is("[{", "{")):
            yield from json_calls(reader)
            return
        yield from reader.expect("[")
        yield from python_calls(reader)

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        return grammar.sequence(self.start, _PythonGrammar(grammar).calls(tools, many=many), self.end)


class BarePythonic(Family):
    """Without markers: the whole reply is the list. Only the names of the request's tools make it one."""

    markers = ("<|python_start|>", "<|python_end|>")

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(map(self.sentinels.encode, self.markers))

    def read(self, reader: Reader) -> Steps[None]:
        yield from reader.content_start()
        yield from reader.attempt(self._list(reader), tentative=True)
        yield from reader.content_until()

    def _list(self, reader: Reader) -> Steps[None]:
        yield from reader.expect("[")
        if not (yield from self._is_call(reader)):
            raise NotACall
        yield from python_calls(reader)

    def _is_call(self, reader: Reader) -> Steps[bool]:
        """Whether the name of a tool and a parenthesis come next."""
        length = 1
        while True:
            head = yield from reader.peek(length)
            if head.endswith("(") and head.strip(SPACE)[:-1] in reader.tools:
                return True
            if len(head) < length and reader.forced:
                return True
            if len(head) < length or not reader.tools.begins_name(head.lstrip(SPACE)):
                return False
            length += 1

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        return _PythonGrammar(grammar).calls(tools, many=many)

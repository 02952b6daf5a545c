"""Calls whose arguments come as pairs of key and value: GLM 4.5 and later, Laguna, LongCat.

<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
</tool_call>
"""

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.json_call import json_calls
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tagged import Arguments
from worker.text.toolcalls.tools import Tool

_NAME: Final = re.compile(r"[\w.\-/:]+")
_NAME_LIMIT: Final = 256


class Glm(MarkedFamily):
    """mlx-lm's `glm47` and `laguna`. Some checkpoints write a JSON object between the markers instead."""

    markers = (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    )  # fmt: skip
    start, end = markers[:2]
    key: ClassVar = ("<arg_key>", "</arg_key>")
    value: ClassVar = ("<arg_value>", "</arg_value>")

    def body(self, reader: Reader) -> Steps[None]:
        yield from reader.space()
        if (yield from reader.next_is("{", "[")):
            yield from json_calls(reader)
            return
        key_start = self.sentinels.encode(self.key[0])
        name, end = yield from reader.until(key_start, self._end, most=_NAME_LIMIT)
        if end == self._end:
            reader.give_back(end)
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise Malformed("the function's name is not closed")
        arguments = Arguments(reader, name, "json")
        if end == key_start:
            yield from self._pairs(reader, arguments, key_start)
        arguments.end()

    def _pairs(self, reader: Reader, arguments: Arguments, key_start: str) -> Steps[None]:
        key_end, value_start, value_end = map(self.sentinels.encode, (self.key[1], *self.value))
        stop = self._end if self.sentinels.is_token(self.end) else ""
        while True:
            key, _ = yield from reader.until(key_end, most=_NAME_LIMIT)
            yield from reader.space()
            yield from reader.expect(value_start)
            yield from arguments.marked(key.strip(), value_end, strip="nothing", stop=stop)
            yield from reader.space()
            if not (yield from reader.accept(key_start)):
                return

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = [self._call(grammar, tool) for tool in tools]
        one = grammar.sequence(self.start, grammar.any_of(calls), self.end)
        return grammar.repeated(one, many=many, between="\n")

    def _call(self, grammar: Grammar, tool: Tool) -> Rule:
        pairs: list[Rule] = []
        for name, schema in tool.properties.items():
            value = grammar.value(schema, tool.parameters, self.value[1])
            pair = grammar.sequence(f"{self.key[0]}{name}{self.key[1]}\n{self.value[0]}", value, "\n")
            pairs.append(pair if name in tool.required else grammar.optional(pair))
        return grammar.sequence(f"{tool.name}\n", *pairs)


class LongCat(Glm):
    """mlx-lm's `longcat`: the same with names of its own."""

    markers = (
        "<longcat_tool_call>", "</longcat_tool_call>",
        "<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>", "</longcat_arg_value>",
    )  # fmt: skip
    start, end = markers[:2]
    key = markers[2:4]
    value = markers[4:6]

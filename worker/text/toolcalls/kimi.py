"""Kimi's calls: K2 with JSON arguments, K3 with elements of its own.

<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
"""

import re
from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.sentinels import quote
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.json_call import arguments_object
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tagged import Arguments
from worker.text.toolcalls.tools import Tool
from worker.text.toolcalls.values import is_text, types_of

_ID: Final = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_NUMBERED: Final = re.compile(r".+:\d+")
_ATTRIBUTE: Final = re.compile(r'(\w+)="([^"]*)"')
_HEAD_LIMIT: Final = 512


class KimiK2(MarkedFamily):
    """mlx-lm's `kimi_k2`. The model numbers its calls itself; its ids are kept, for it expects them back."""

    markers = (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    )  # fmt: skip
    start, end = markers[:2]

    def body(self, reader: Reader) -> Steps[None]:
        begin, argument, end = map(self.sentinels.encode, self.markers[2:])
        while True:
            yield from reader.space()
            yield from reader.expect(begin)
            head, _ = yield from reader.until(argument, most=_HEAD_LIMIT)
            head = head.strip()
            match = _ID.fullmatch(head)
            if not match:
                raise Malformed("a call without a name")
            reader.begin_call(match[1], head if _NUMBERED.fullmatch(head) else None)
            yield from arguments_object(reader)
            reader.end_call()
            yield from reader.space()
            yield from reader.expect(end)
            yield from reader.space()
            if not (yield from reader.next_is(begin)):
                return

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        _, _, begin, argument, end = self.markers
        number = grammar.rule("/[0-9]{1,2}/" if many else quote("0"))
        calls = [
            grammar.sequence(f"{begin}functions.{tool.name}:", number, argument, grammar.arguments(tool), end)
            for tool in tools
        ]
        several = grammar.repeated(grammar.any_of(calls), many=many)
        return grammar.sequence(self.start, several, self.end)


class KimiK3(MarkedFamily):
    """mlx-lm's `kimi_k3`: everything is an element that is opened and closed by tokens.

    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>
    """

    markers = ("<|open|>", "<|close|>", "<|sep|>")
    start, end = "<|open|>tools<|sep|>", "<|close|>tools<|sep|>"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self._start,) if self.sentinels.is_token("<|open|>") else ()

    @property
    def dropped(self) -> tuple[str, ...]:
        elements = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
        return tuple(map(self.sentinels.encode, elements))

    def body(self, reader: Reader) -> Steps[None]:
        opening, closing, separator = map(self.sentinels.encode, self.markers)
        while True:
            yield from reader.space()
            yield from reader.expect(f"{opening}call")
            head, _ = yield from reader.until(separator, most=_HEAD_LIMIT)
            name = _attributes(head).get("tool", "")
            arguments: Arguments | None = None
            while True:
                yield from reader.space()
                if (yield from reader.expect(f"{closing}call{separator}", opening)) != opening:
                    break
                kind, _ = yield from reader.until(separator, most=_HEAD_LIMIT)
                if kind.split(" ")[0] == "json" and arguments is None:
                    reader.begin_call(name)
                    yield from arguments_object(reader)
                    yield from reader.space()
                    yield from reader.expect(f"{closing}json{separator}")
                    reader.end_call()
                    name = ""
                    continue
                if name:
                    arguments = arguments or Arguments(reader, name, "text")
                yield from self._argument(reader, arguments, _attributes(kind))
            if name:
                (arguments or Arguments(reader, name, "text")).end()
            yield from reader.space()
            if not (yield from reader.next_is(f"{opening}call")):
                return

    def _argument(
        self, reader: Reader, arguments: Arguments | None, attributes: dict[str, str]
    ) -> Steps[None]:
        key = attributes.get("key")
        if arguments is None or key is None:
            raise Malformed("an argument without a key")
        _, closing, separator = map(self.sentinels.encode, self.markers)
        untyped = "text" if attributes.get("type", "string") == "string" else "json"
        close = f"{closing}argument{separator}"
        if untyped == "text":
            yield from arguments.marked(key, close, strip="nothing", untyped="text")
        else:
            yield from arguments.marked(key, close, strip="nothing", untyped="json")

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([self._call(grammar, tool, many=many) for tool in tools])
        return grammar.sequence(self.start, grammar.repeated(calls, many=many), self.end)

    def _call(self, grammar: Grammar, tool: Tool, *, many: bool) -> Rule:
        number = grammar.rule("/[1-9][0-9]?/" if many else quote("1"))
        elements: list[Rule] = []
        for name, schema in tool.properties.items():
            types = types_of(schema)
            kind = "string" if is_text(schema, "text") or "string" in types else min(types)
            tag = f'<|open|>argument key="{_escaped(name)}" type="{kind}"<|sep|>'
            value = grammar.value(schema, tool.parameters, "<|close|>argument<|sep|>")
            element = grammar.sequence(tag, value)
            elements.append(element if name in tool.required else grammar.optional(element))
        head = f'<|open|>call tool="{_escaped(tool.name)}" index="'
        return grammar.sequence(head, number, '"<|sep|>', *elements, "<|close|>call<|sep|>")


def _attributes(head: str) -> dict[str, str]:
    return {
        key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)
    }


def _escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")

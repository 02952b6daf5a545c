"""Gemma's calls, which look like JSON with bare keys and a string delimiter of their own.

<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>
"""

import re
from collections.abc import Sequence
from typing import Final

from worker.text.grammar.bare_keys import BareKeys
from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.json_text import dumps
from worker.text.toolcalls.literals import separated
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tagged import Arguments
from worker.text.toolcalls.tools import Schema, Tool
from worker.text.toolcalls.values import to_json

_NAME: Final = re.compile(r"[\w.\-]")
_BARE: Final = re.compile(r"[^,{}\[\]]")
_KEY_LIMIT: Final = 256
_DEEPEST: Final = 64


class Gemma4(MarkedFamily):
    """mlx-lm's `gemma4`."""

    markers = ("<|tool_call>", "<tool_call|>", '<|"|>')
    start, end, quote = markers

    def body(self, reader: Reader) -> Steps[None]:
        while True:
            yield from reader.space()
            yield from reader.expect("call:")
            name = yield from reader.matching(_NAME)
            yield from reader.expect("{")
            arguments = Arguments(reader, name, "json")

            def argument(name: str = name, arguments: Arguments = arguments) -> Steps[None]:
                key = yield from self._key(reader)
                schema = reader.tools.argument(name, key)
                arguments.member(key, (yield from self._value(reader, schema, 0)))

            yield from separated(reader, "}", argument)
            arguments.end()
            yield from reader.space()
            if not (yield from reader.next_is("call:")):
                return

    def _key(self, reader: Reader) -> Steps[str]:
        quote = self.sentinels.encode(self.quote)
        if (yield from reader.accept(quote)):
            key, _ = yield from reader.until(quote, most=_KEY_LIMIT)
            yield from reader.space()
            yield from reader.expect(":")
        else:
            key, _ = yield from reader.until(":", most=_KEY_LIMIT)
        yield from reader.space()
        return reader.spell(key).strip().strip('"')

    def _value(self, reader: Reader, schema: Schema | None, depth: int) -> Steps[str]:
        if depth > _DEEPEST:
            raise Malformed("the value is nested too deeply")
        quote = self.sentinels.encode(self.quote)
        opened = yield from reader.accept(quote, "{", "[")
        if opened == quote:
            text, _ = yield from reader.until(quote)
            return dumps(reader.spell(text))
        parts: list[str] = []
        if opened == "{":

            def member() -> Steps[None]:
                key = yield from self._key(reader)
                parts.append(f"{dumps(key)}: {(yield from self._value(reader, None, depth + 1))}")

            yield from separated(reader, "}", member)
            return f"{{{', '.join(parts)}}}"
        if opened == "[":

            def item() -> Steps[None]:
                parts.append((yield from self._value(reader, None, depth + 1)))

            yield from separated(reader, "]", item)
            return f"[{', '.join(parts)}]"
        text = yield from reader.matching(_BARE)
        if not text.strip():
            raise Malformed("an argument without a value")
        return to_json(reader.spell(text).strip(), schema, "json")

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = []
        for tool in tools:
            values = BareKeys(grammar, tool.parameters, self.quote)
            calls.append(grammar.sequence(f"call:{tool.name}", values.arguments()))
        one = grammar.sequence(self.start, grammar.any_of(calls), self.end)
        return grammar.repeated(one, many=many)


class FunctionGemma(Gemma4):
    """mlx-lm's `function_gemma`."""

    markers = ("<start_function_call>", "<end_function_call>", "<escape>")
    start, end, quote = markers

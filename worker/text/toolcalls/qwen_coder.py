"""Qwen3-Coder's calls.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>
"""

from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tagged import Arguments
from worker.text.toolcalls.tools import Tool

_NAME_LIMIT: Final = 256


class QwenCoder(MarkedFamily):
    """mlx-lm's `qwen3_coder`."""

    markers = ("<tool_call>", "</tool_call>")
    start, end = markers

    def body(self, reader: Reader) -> Steps[None]:
        while True:
            yield from reader.space()
            yield from reader.expect("<function=")
            name, _ = yield from reader.until(">", most=_NAME_LIMIT)
            yield from self._arguments(reader, name.strip())
            yield from reader.space()
            if not (yield from reader.next_is("<function=")):
                return

    def _arguments(self, reader: Reader, name: str) -> Steps[None]:
        if "<" in name or not name:
            raise Malformed("the function's name is not closed")
        stop = self._end if self.sentinels.is_token(self.end) else ""
        arguments = Arguments(reader, name, "text")
        while True:
            yield from reader.space()
            if (yield from reader.expect("<parameter=", "</function>")) == "</function>":
                break
            key, _ = yield from reader.until(">", most=_NAME_LIMIT)
            yield from arguments.marked(key.strip(), "</parameter>", strip="line", stop=stop)
        arguments.end()

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = [self._call(grammar, tool) for tool in tools]
        one = grammar.sequence("<tool_call>\n", grammar.any_of(calls), "\n</tool_call>")
        return grammar.repeated(one, many=many, between="\n")

    def _call(self, grammar: Grammar, tool: Tool) -> Rule:
        parameters: list[Rule] = []
        for name, schema in tool.properties.items():
            value = grammar.value(schema, tool.parameters, "\n</parameter>\n")
            parameter = grammar.sequence(f"<parameter={name}>\n", value)
            parameters.append(parameter if name in tool.required else grammar.optional(parameter))
        return grammar.sequence(f"<function={tool.name}>\n", *parameters, "</function>")

"""JSON calls between markers: Hermes, Qwen 2.5 and 3, and many others.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from collections.abc import Sequence

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.json_call import json_calls
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Steps
from worker.text.toolcalls.tools import Tool


class Hermes(MarkedFamily):
    """mlx-lm's `json_tools`."""

    markers = ("<tool_call>", "</tool_call>")
    start, end = markers

    def body(self, reader: Reader) -> Steps[None]:
        return json_calls(reader)

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        call = grammar.any_of(grammar.json_call(tool) for tool in tools)
        one = grammar.sequence("<tool_call>\n", call, "\n</tool_call>")
        return grammar.repeated(one, many=many, between="\n")

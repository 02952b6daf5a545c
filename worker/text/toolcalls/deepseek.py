"""DeepSeek's calls, of V3 and R1 and of V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 has the name where V3 has the word `function`, and the arguments bare behind it.
"""

from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.json_call import arguments_object
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Steps
from worker.text.toolcalls.tools import Tool

_HEAD_LIMIT: Final = 512


class DeepSeek(MarkedFamily):
    """V3.1's syntax; V3's is understood too."""

    markers = (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    )  # fmt: skip
    start, end = markers[:2]

    def body(self, reader: Reader) -> Steps[None]:
        begin, separator, end = map(self.sentinels.encode, self.markers[2:])
        while True:
            yield from reader.space()
            yield from reader.expect(begin)
            name, _ = yield from reader.until(separator, most=_HEAD_LIMIT)
            yield from reader.space()
            fenced = not (yield from reader.next_is("{"))
            if fenced:
                name, _ = yield from reader.until("\n", most=_HEAD_LIMIT)
                yield from reader.expect("```json")
            reader.begin_call(name.strip())
            yield from arguments_object(reader)
            reader.end_call()
            yield from reader.space()
            if fenced:
                yield from reader.accept("```")
                yield from reader.space()
            yield from reader.expect(end)
            yield from reader.space()
            if not (yield from reader.next_is(begin)):
                return

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([self.call(grammar, tool) for tool in tools])
        return grammar.sequence(
            self.start, grammar.repeated(calls, many=many, between=self.between), self.end
        )

    between = ""

    def call(self, grammar: Grammar, tool: Tool) -> Rule:
        """The grammar of one call."""
        return grammar.sequence(
            f"<｜tool▁call▁begin｜>{tool.name}<｜tool▁sep｜>", grammar.arguments(tool), "<｜tool▁call▁end｜>"
        )


class DeepSeekV3(DeepSeek):
    """The syntax of V3 and R1."""

    between = "\n"

    def call(self, grammar: Grammar, tool: Tool) -> Rule:
        return grammar.sequence(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{tool.name}\n```json\n",
            grammar.arguments(tool),
            "\n```<｜tool▁call▁end｜>",
        )

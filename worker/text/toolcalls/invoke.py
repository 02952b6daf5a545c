"""Calls as `invoke` elements with `parameter` elements: MiniMax M2, Muse Spark, DeepSeek V3.2, MiniCPM 5.

<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
</invoke>
</minimax:tool_call>
"""

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import MarkedFamily
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tagged import Arguments, Strip, attribute
from worker.text.toolcalls.tools import Schema, Tool
from worker.text.toolcalls.values import Untyped, is_text

_NAME: Final = re.compile(r"""\bname\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+)""")
_TAG_LIMIT: Final = 512


class Invoke(MarkedFamily):
    """What the families share; each says how its elements are spelled."""

    call: ClassVar[tuple[str, str]]
    """Beginning of the call's opening tag, and its closing tag."""
    parameter: ClassVar[tuple[str, str]]
    strip: ClassVar[Strip] = "line"
    untyped: ClassVar[Untyped] = "text"
    break_: ClassVar[str] = "\n"
    """What stands between elements."""

    def body(self, reader: Reader) -> Steps[None]:
        opening = self.sentinels.encode(self.call[0])
        while True:
            yield from reader.space()
            yield from reader.expect(opening)
            yield from self.one(reader)
            yield from reader.space()
            if not (yield from reader.next_is(opening)):
                return

    def one(self, reader: Reader) -> Steps[None]:
        """A call, behind the beginning of its opening tag."""
        closing = self.sentinels.encode(self.call[1])
        parameter = self.sentinels.encode(self.parameter[0])
        tag, _ = yield from reader.until(">", most=_TAG_LIMIT)
        arguments = Arguments(reader, self.named(tag), self.untyped)
        while True:
            yield from reader.space()
            if (yield from reader.expect(parameter, closing)) == closing:
                break
            tag, _ = yield from reader.until(">", most=_TAG_LIMIT)
            yield from self.argument(reader, arguments, tag)
        arguments.end()

    def argument(self, reader: Reader, arguments: Arguments, tag: str) -> Steps[None]:
        """One argument, behind its opening tag."""
        stop = self._end if self.sentinels.is_token(self.end) else ""
        close = self.sentinels.encode(self.parameter[1])
        yield from arguments.marked(self.named(tag), close, strip=self.strip, stop=stop)

    def named(self, tag: str) -> str:
        """The name in an opening tag, of which the beginning is taken."""
        match = _NAME.search(tag)
        if not match:
            raise Malformed("an element without a name")
        return attribute(match[1])

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([self._call(grammar, tool) for tool in tools])
        return grammar.sequence(self.start + self.break_, grammar.repeated(calls, many=many), self.end)

    def _call(self, grammar: Grammar, tool: Tool) -> Rule:
        # Every element ends with its break: what may follow then differs from its first letters on, as the
        # compiler's lexer wants it.
        elements: list[Rule] = []
        for name, schema in tool.properties.items():
            value = grammar.value(schema, tool.parameters, self.parameter[1] + self.break_)
            tag = f'{self.parameter[0]} name="{name}"{self.kind(schema)}>'
            element = grammar.sequence(tag, value)
            elements.append(element if name in tool.required else grammar.optional(element))
        return grammar.sequence(
            f'{self.call[0]} name="{tool.name}">{self.break_}', *elements, self.call[1] + self.break_
        )

    def kind(self, schema: Schema) -> str:
        """Further attributes of a parameter."""
        return ""


class MiniMax(Invoke):
    """mlx-lm's `minimax_m2`."""

    markers = ("<minimax:tool_call>", "</minimax:tool_call>")
    start, end = markers
    call = ("<invoke", "</invoke>")
    parameter = ("<parameter", "</parameter>")


class DeepSeekMarkup(Invoke):
    """DeepSeek V3.2: each parameter says whether it is a string as it stands, or JSON."""

    markers = ("｜DSML｜",)
    start, end = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
    call = ("<｜DSML｜invoke", "</｜DSML｜invoke>")
    parameter = ("<｜DSML｜parameter", "</｜DSML｜parameter>")
    strip = "nothing"

    def argument(self, reader: Reader, arguments: Arguments, tag: str) -> Steps[None]:
        close = self.sentinels.encode(self.parameter[1])
        key = self.named(tag)
        yield from arguments.marked(
            key, close, strip=self.strip, untyped="json" if 'string="false"' in tag else "text"
        )

    def kind(self, schema: Schema) -> str:
        return ' string="true"' if is_text(schema, "text") else ' string="false"'


class MiniCpm(Invoke):
    """mlx-lm's `minicpm5`: no element around the calls, and CDATA around values that look like markup.

    <function name="get_weather"><param name="city">Paris</param></function>
    """

    markers = ("<function", "</function>", "<param", "</param>")
    start, end = "<function ", "</function>"
    call = ("<function", end)
    parameter = ("<param", "</param>")
    strip = "space"
    break_ = ""

    def read(self, reader: Reader) -> Steps[None]:
        while True:
            yield from reader.content_until(self._start)
            yield from reader.attempt(self._whole(reader), self._end)

    def _whole(self, reader: Reader) -> Steps[None]:
        yield from reader.expect(self._start)
        yield from self.one(reader)

    def argument(self, reader: Reader, arguments: Arguments, tag: str) -> Steps[None]:
        close = self.sentinels.encode(self.parameter[1])
        yield from reader.space()
        if (yield from reader.accept("<![CDATA[")):
            yield from arguments.marked(self.named(tag), "]]>", strip="nothing")
            yield from reader.space()
            yield from reader.expect(close)
        else:
            yield from arguments.marked(self.named(tag), close, strip="space")

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([self._call(grammar, tool) for tool in tools])
        return grammar.repeated(calls, many=many, between="\n")

"""Muse Spark's replies: messages with headers, as mlx-lm's response format for it describes.

to=self<|message|>The user wants...<|eom|>
<|start|>assistant to=get_weather<|message|><atem:function_calls>
<atem:invoke name="get_weather">
<atem:parameter name="city">Paris</atem:parameter>
</atem:invoke>
</atem:function_calls><|eom|>
<|start|>assistant to=user<|message|>It is sunny.<|eot|>
"""

from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.sentinels import Sentinels
from worker.text.toolcalls.family import Thought
from worker.text.toolcalls.invoke import Invoke
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Ended, Malformed, Steps
from worker.text.toolcalls.tools import Tool

_HEADER_LIMIT: Final = 256


class Muse(Invoke):
    """mlx-lm's `muse_spark`."""

    markers = (
        "<|start|>", "<|message|>", "<|eom|>", "<|eot|>",
        "<atem:function_calls>", "</atem:function_calls>",
    )  # fmt: skip
    start, end = "<atem:function_calls>", "</atem:function_calls>"
    call = ("<atem:invoke", "</atem:invoke>")
    parameter = ("<atem:parameter", "</atem:parameter>")
    strip = "space"
    untyped = "json"
    always = True
    answer_head = "to=user<|message|>"
    thought = Thought(
        "to=self<|message|>",
        "<|eom|>",
        ("<|eom|><|start|>assistant ", "<|eom|><|start|>assistant to=user<|message|>"),
    )

    def __init__(self, sentinels: Sentinels) -> None:
        super().__init__(sentinels)
        self._header, self._message, *ends = map(sentinels.encode, self.markers[:4])
        self._ends = tuple(ends)

    def read(self, reader: Reader) -> Steps[None]:
        while True:
            try:
                header, end = yield from reader.until(
                    self._message, *self._ends, self._start, most=_HEADER_LIMIT
                )
            except Malformed:
                yield from self._answer(reader)
                continue
            except Ended:
                header = reader.take(len(reader.rest()))
                if self._header not in header and not header.startswith("to="):
                    reader.content(header)
                raise
            if end == self._start:
                reader.give_back(end)
                yield from self._calls(reader)
            elif end == self._message:
                if "to=self" in header:
                    yield from reader.think(*self._ends)
                else:
                    yield from self._answer(reader)

    def _answer(self, reader: Reader) -> Steps[None]:
        yield from reader.paragraph(*self._ends, back=(self._start,))
        if (yield from reader.next_is(self._start)):
            yield from self._calls(reader)

    def _calls(self, reader: Reader) -> Steps[None]:
        yield from reader.attempt(self._marked(reader), self._end)

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = []
        for tool in tools:
            several = grammar.repeated(self._call(grammar, tool), many=many)
            head = f"to={tool.name}<|message|>{self.start}\n"
            calls.append(grammar.sequence(head, several, self.end))
        return grammar.any_of(calls)

    def preamble(self, grammar: Grammar) -> Rule:
        whole = grammar.sequence("to=self<|message|>", grammar.text({}, "<|eom|>"), "<|start|>assistant ")
        return grammar.optional(whole)

"""Harmony, the reply format of gpt-oss: a reply is several messages, each with a header.

    <|channel|>analysis<|message|>The user wants...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>
    {"city": "Paris"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

The prompt ends with `<|start|>assistant`, so a reply begins inside a header. Analysis is reasoning; a message
to a function is a call; everything else is shown.
"""

import re
from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.sentinels import Sentinels
from worker.text.toolcalls.family import Family, Thought
from worker.text.toolcalls.json_call import arguments_object
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Ended, Malformed, Steps
from worker.text.toolcalls.tools import Tool

_TO: Final = re.compile(r"\bto=([\w.\-]+)")
_HEADER_LIMIT: Final = 256

START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN = (
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip


class Harmony(Family):
    """Reads the whole reply, its reasoning too, whether or not the request has tools."""

    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
    always = True
    answer_head = f"{CHANNEL}final{MESSAGE}"
    thought = Thought(
        f"{CHANNEL}analysis{MESSAGE}",
        END,
        # First the model may choose between a call and an answer; if it goes on thinking it has to answer.
        (f"{END}{START}assistant", f"{END}{START}assistant{CHANNEL}final{MESSAGE}"),
    )

    def __init__(self, sentinels: Sentinels) -> None:
        super().__init__(sentinels)
        self._start, self._channel, self._message, self._constrain = map(sentinels.encode, self.markers[:4])
        self._ends = tuple(map(sentinels.encode, (END, CALL, RETURN)))

    def read(self, reader: Reader) -> Steps[None]:
        while True:
            try:
                header, end = yield from reader.until(
                    self._message, self._start, *self._ends, most=_HEADER_LIMIT
                )
            except Malformed:
                # No header at all: what such a model says is best shown.
                yield from reader.paragraph(*self._ends, back=(self._start,))
                continue
            except Ended:
                self._unfinished(reader, reader.take(len(reader.rest())))
                raise
            if end == self._message:
                yield from self._message_body(reader, header)
            elif end != self._start:
                self._unfinished(reader, header)

    def _unfinished(self, reader: Reader, header: str) -> None:
        if not any(mark in header for mark in (self._start, self._channel, self._constrain)):
            reader.content(header)

    def _message_body(self, reader: Reader, header: str) -> Steps[None]:
        _, _, channel = header.partition(self._channel)
        recipient = _TO.search(header)
        if recipient:
            name = recipient[1].removeprefix("functions.")
            yield from reader.attempt(self._call(reader, name), *self._ends)
        elif channel.lstrip().startswith("analysis"):
            yield from reader.think(*self._ends, back=(self._start,))
        else:
            yield from reader.paragraph(*self._ends, back=(self._start,))

    def _call(self, reader: Reader, name: str) -> Steps[None]:
        reader.begin_call(name)
        yield from arguments_object(reader)
        reader.end_call()
        yield from reader.space()
        if not (yield from reader.next_is(self._start)):
            yield from reader.expect(*self._ends)

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        # One call is all a turn can hold: the model ends its reply with it.
        calls = [
            grammar.sequence(
                f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}",
                grammar.arguments(tool),
                CALL,
            )
            for tool in tools
        ]
        return grammar.any_of(calls)

    def preamble(self, grammar: Grammar) -> Rule:
        text = grammar.rule(r"/(.|\n)*/")
        whole = grammar.sequence(f"{CHANNEL}analysis{MESSAGE}", text, f"{END}{START}assistant")
        return grammar.optional(whole)

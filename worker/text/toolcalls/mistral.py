"""Mistral's calls: a name and JSON arguments each, or in older models a JSON list of calls.

[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
"""

import re
import secrets
import string
from collections.abc import Sequence
from typing import Final

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.json_call import arguments_object, json_calls
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, Steps
from worker.text.toolcalls.tools import Tool

_NAME: Final = re.compile(r"[\w.\-]+")
_HEAD_LIMIT: Final = 256
_ID_CHARACTERS: Final = string.ascii_letters + string.digits


class Mistral(Family):
    """mlx-lm's `mistral`. There is no end marker: a call ends with its arguments."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    @property
    def begins(self) -> tuple[str, ...]:
        start = self.markers[0]
        return (self.sentinels.encode(start),) if self.sentinels.is_token(start) else ()

    def new_id(self) -> str:
        # Mistral's templates refuse a history with ids of any other form.
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))

    def read(self, reader: Reader) -> Steps[None]:
        start = self.sentinels.encode(self.markers[0])
        while True:
            yield from reader.content_until(start)
            yield from reader.attempt(self._calls(reader, start))

    def _calls(self, reader: Reader, start: str) -> Steps[None]:
        yield from reader.expect(start)
        yield from reader.space()
        if (yield from reader.next_is("[{")):
            yield from json_calls(reader)
            return
        arguments, call_id = map(self.sentinels.encode, self.markers[1:])
        head, end = yield from reader.until(arguments, call_id, "{", most=_HEAD_LIMIT)
        if not _NAME.fullmatch(head.strip()):
            raise Malformed("the function's name is not closed")
        given: str | None = None
        if end == call_id:
            given, end = yield from reader.until(arguments, "{", most=_HEAD_LIMIT)
        if end == "{":
            reader.give_back(end)
        reader.begin_call(head.strip(), given.strip() if given else None)
        yield from arguments_object(reader)
        reader.end_call()

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([self.call(grammar, tool) for tool in tools])
        one = grammar.sequence("[TOOL_CALLS]", calls)
        return grammar.repeated(one, many=many)

    def call(self, grammar: Grammar, tool: Tool) -> Rule:
        """The grammar of one call, behind the marker."""
        return grammar.sequence(f"{tool.name}[ARGS]", grammar.arguments(tool))


class MistralList(Mistral):
    """The older syntax, a JSON list."""

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        calls = grammar.any_of([grammar.json_call(tool) for tool in tools])
        return grammar.sequence("[TOOL_CALLS][", grammar.repeated(calls, many=many, between=", "), "]")

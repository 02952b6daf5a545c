"""Llama 3's JSON calls, and those of any model that was only told about its tools.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Llama 3.1 may say `<|python_tag|>` first. Several calls are separated by semicolons or lines.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from worker.text.grammar.lark import Grammar, Rule
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.json_call import json_call
from worker.text.toolcalls.pythonic import python_call
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Steps
from worker.text.toolcalls.tools import Tool


class LlamaJson(Family):
    """Nothing marks a call but its shape: an object at the beginning of a line that names a tool first."""

    markers = ("<|python_tag|>",)
    mixes = False

    def read(self, reader: Reader) -> Steps[None]:
        tag = self.sentinels.encode(self.markers[0])
        yield from reader.content_start()
        while True:
            if (yield from reader.accept(tag)):
                yield from reader.space()
                if not (yield from reader.next_is("{")):
                    # Llama 3.1 calls what Meta trained it on like `brave_search.call(query="...")`.
                    yield from reader.attempt(python_call(reader, known=True), tentative=True)
            while (yield from reader.next_is("{")):
                yield from reader.attempt(json_call(reader, known=True), tentative=True)
                if not reader.called:
                    break
                yield from reader.space()
                if (yield from reader.accept(";", ",")):
                    yield from reader.space()
            if (yield from reader.content_until("\n{", tag)) != tag:
                reader.content(reader.take(1))

    def calls(self, grammar: Grammar, tools: Sequence[Tool], *, many: bool) -> Rule:
        call = grammar.any_of([grammar.json_call(tool, arguments="parameters") for tool in tools])
        return grammar.repeated(call, many=many, between="; ")


class ToldJson(LlamaJson):
    """For models whose chat template knows nothing of tools: they are told in the system message."""

    def instructions(self, tools: Sequence[Tool]) -> str | None:
        listed = "\n".join(orjson.dumps(_description(tool)).decode() for tool in tools)
        return (
            f"You can call functions. Each line describes one:\n{listed}\n\n"
            "To call a function, answer with a JSON object and nothing else: its `name` is the function's "
            "name, its `parameters` are the arguments, taken from what the user says. "
            "Call a function only if it helps; otherwise answer in plain words."
        )


def _description(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}

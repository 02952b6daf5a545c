"""Calls whose arguments are marked up one by one, as in XML: what such syntaxes have in common."""

from typing import Literal

from worker.text.toolcalls.json_text import dumps
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import SPACE, Malformed, Steps
from worker.text.toolcalls.values import Untyped, is_text, to_json

Strip = Literal["nothing", "line", "space"]
"""What belongs to the markup around a value: nothing, one line break at each side, or all white space."""


class Arguments:
    """Writes the arguments of one call as a JSON object, member by member."""

    def __init__(self, reader: Reader, name: str, untyped: Untyped, call_id: str | None = None) -> None:
        self._reader = reader
        self._name = name
        self._untyped = untyped
        self._count = 0
        reader.begin_call(name, call_id)

    def member(self, key: str, value: str) -> None:
        """An argument whose JSON is known."""
        self._reader.arguments(self._key(key) + value)

    def _key(self, key: str) -> str:
        self._count += 1
        return f"{'{' if self._count == 1 else ', '}{dumps(key)}: "

    def marked(
        self, key: str, close: str, *, strip: Strip, stop: str = "", untyped: Untyped | None = None
    ) -> Steps[None]:
        """An argument written as it is up to `close`; a string is passed on while it comes.

        `stop` is a sentinel token that can't be in a value: the call is broken when it comes first.
        """
        reader = self._reader
        untyped = untyped or self._untyped
        ends = (close, stop) if stop else (close,)
        schema = reader.tools.argument(self._name, key)
        if strip == "line":
            yield from reader.accept("\r\n", "\n")
        elif strip == "space":
            yield from reader.space()
        if not is_text(schema, untyped):
            text, end = yield from reader.until(*ends)
            self._check(end, stop)
            self.member(key, to_json(_stripped(reader.spell(text), strip), schema, untyped))
            return
        reader.arguments(self._key(key) + '"')

        def say(text: str) -> None:
            reader.arguments(dumps(reader.spell(text))[1:-1])

        hold = {"nothing": "", "line": "\r\n", "space": SPACE}[strip]
        held, end = yield from reader.stream_until(ends, say, hold=hold)
        self._check(end, stop)
        if strip == "line":
            say(_stripped(held, strip))
        reader.arguments('"')

    def _check(self, end: str, stop: str) -> None:
        if stop and end == stop:
            self._reader.give_back(end)
            raise Malformed("the call ends inside an argument")

    def end(self) -> None:
        self._reader.arguments("}" if self._count else "{}")
        self._reader.end_call()


def _stripped(text: str, strip: Strip) -> str:
    if strip == "space":
        return text.strip(SPACE)
    if strip == "line":
        return text.removesuffix("\n").removesuffix("\r")
    return text


def attribute(text: str) -> str:
    """The value of an attribute, with or without its quotes."""
    text = text.strip(SPACE)
    if len(text) >= 2 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1]
    return text

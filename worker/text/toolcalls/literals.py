"""Python literals to JSON: how the pythonic families write arguments."""

import re
from collections.abc import Callable
from typing import Final

from worker.text.toolcalls.json_text import dumps, well_formed
from worker.text.toolcalls.source import Ended, Malformed, Source, Steps, run_whole

_WORD: Final = re.compile(r"[A-Za-z_]")
_NUMERIC: Final = re.compile(r"[-+.0-9eExXa-fA-F_]")
_NAMES: Final = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null",
}  # fmt: skip
_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_DEEPEST: Final = 64


def literal(source: Source, depth: int = 0) -> Steps[str]:
    """One literal as JSON. Containers may hold JSON's names for constants too, as templates write them."""
    if depth > _DEEPEST:
        raise Malformed("the value is nested too deeply")
    first = yield from source.peek()
    if first in ("'", '"'):
        return dumps((yield from string(source)))
    if first in ("[", "("):
        source.take(1)
        items = yield from _items(source, {"[": "]", "(": ")"}[first], depth)
        return f"[{', '.join(items)}]"
    if first == "{":
        source.take(1)
        members = yield from _members(source, depth)
        return f"{{{', '.join(members)}}}"
    if first and _WORD.match(first):
        name = yield from source.matching(_WORD)
        if name in _NAMES:
            return _NAMES[name]
        raise Malformed(f"{name!r} is not a literal")
    if first and first in "-+.0123456789":
        return _number((yield from source.matching(_NUMERIC)))
    if not first:
        raise Ended
    raise Malformed(f"{source.spell(first)!r} does not begin a literal")


def string(source: Source) -> Steps[str]:
    """A string in single or double quotes, or three of them."""
    quote = yield from source.expect('"""', "'''", '"', "'")
    text: list[str] = []
    while True:
        piece, end = yield from source.until(quote, "\\")
        text.append(source.spell(piece))
        if end == quote:
            return well_formed("".join(text))
        character = yield from source.peek()
        if not character:
            raise Ended
        source.take(1)
        if character in _HEX:
            text.append((yield from _hexadecimal(source, _HEX[character])))
        else:
            text.append(_ESCAPES.get(character, "\\" + character))


def _hexadecimal(source: Source, length: int) -> Steps[str]:
    digits = yield from source.peek(length)
    if len(digits) < length:
        raise Ended
    try:
        character = chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise Malformed(f"{digits!r} is not a character's number") from None
    source.take(length)
    return character


def _items(source: Source, end: str, depth: int) -> Steps[list[str]]:
    items: list[str] = []

    def item() -> Steps[None]:
        items.append((yield from literal(source, depth + 1)))

    yield from separated(source, end, item)
    return items


def _members(source: Source, depth: int) -> Steps[list[str]]:
    members: list[str] = []

    def member() -> Steps[None]:
        key = yield from string(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        members.append(f"{dumps(key)}: {(yield from literal(source, depth + 1))}")

    yield from separated(source, "}", member)
    return members


def separated(source: Source, end: str, item: Callable[[], Steps[None]]) -> Steps[None]:
    """Items with commas between them, up to and with `end`; one more comma at the end is fine."""
    while True:
        yield from source.space()
        if (yield from source.accept(end)):
            return
        yield from item()
        yield from source.space()
        if (yield from source.expect(",", end)) == end:
            return


def _number(text: str) -> str:
    for convert in (lambda digits: int(digits, 0), float):
        try:
            return dumps(convert(text))
        except (ValueError, OverflowError):
            continue
    raise Malformed(f"{text!r} is not a number")


def parse_literal(text: str) -> str | None:
    """JSON for a complete Python literal; None when it is not one."""
    return run_whole(literal, text.strip())

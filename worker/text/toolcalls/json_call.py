"""A call written as a JSON object: `{"name": ..., "arguments": {...}}`."""

import json
from typing import Any, Final

from worker.text.toolcalls.json_text import well_formed
from worker.text.toolcalls.reader import Reader
from worker.text.toolcalls.source import Malformed, NotACall, Steps

NAME_KEYS: Final = frozenset({"name", "tool"})
ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
_HARMLESS_KEYS: Final = frozenset({"type", "id", "function"})


class _Call:
    """What is known of the call so far. Arguments that come before the name wait for it.

    With `known` only, an object is a call only if it names a tool of the request before anything else.
    """

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.named = False
        self.waiting: str | None = None
        self.argued = False


def json_calls(reader: Reader) -> Steps[None]:
    """One call, or a list of them."""
    yield from reader.space()
    if not (yield from reader.accept("[")):
        yield from json_call(reader)
        return
    while True:
        yield from reader.space()
        if (yield from reader.accept("]")):
            return
        yield from json_call(reader)
        yield from reader.space()
        if (yield from reader.expect(",", "]")) == "]":
            return


def json_call(reader: Reader, *, known: bool = False) -> Steps[None]:
    """One call, from its brace to its brace. The keys may come in any order, others are skipped.

    With `known`, an object that has other keys first or names no tool of the request raises NotACall.
    """
    call = _Call(known=known)
    yield from reader.expect("{")
    yield from _members(reader, call)
    if not call.named:
        raise Malformed("the call has no name")
    if not call.argued:
        reader.arguments(call.waiting or "{}")
    reader.end_call()


def _members(reader: Reader, call: _Call) -> Steps[None]:
    yield from reader.space()
    if (yield from reader.accept("}")):
        return
    while True:
        yield from reader.space()
        key = yield from text(reader)
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        yield from _member(reader, call, key)
        yield from reader.space()
        if (yield from reader.expect(",", "}")) == "}":
            return


def _member(reader: Reader, call: _Call, key: str) -> Steps[None]:
    first = yield from reader.peek()
    if key == "function" and first == "{":
        reader.take(1)
        yield from _members(reader, call)
    elif key in NAME_KEYS or (key == "function" and first == '"'):
        name = yield from text(reader)
        if not call.named:
            if call.known and name not in reader.tools:
                raise NotACall
            reader.begin_call(name)
            call.named = True
            if call.waiting is not None:
                reader.arguments(call.waiting)
                call.argued = True
    elif key in ARGUMENT_KEYS and not call.argued and call.waiting is None:
        yield from _arguments(reader, call, first)
    else:
        if call.known and not call.named and key not in _HARMLESS_KEYS:
            raise NotACall
        yield from whole(reader)


def _arguments(reader: Reader, call: _Call, first: str) -> Steps[None]:
    if first == "{" and call.named:
        call.argued = True
        yield from reader.json(reader.arguments)
        return
    value = yield from whole(reader)
    if first == '"':
        value = _unpacked(value)
    elif first == "n":
        value = "{}"
    elif first != "{":
        raise Malformed("the arguments are not an object")
    if call.named:
        reader.arguments(value)
        call.argued = True
    else:
        call.waiting = value


def _unpacked(value: str) -> str:
    """Arguments that were written as a string of JSON."""
    inner = well_formed(json.loads(value))
    if not inner.strip():
        return "{}"
    check_object(inner)
    return inner


def check_object(value: str) -> None:
    """Raises Malformed when `value` is not a JSON object."""
    try:
        parsed: Any = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the arguments are not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Malformed("the arguments are not an object")


def text(reader: Reader) -> Steps[str]:
    """A JSON string, parsed."""
    if (yield from reader.peek()) not in ('"', ""):
        raise Malformed("a string belongs here")
    return well_formed(json.loads((yield from whole(reader))))


def whole(reader: Reader) -> Steps[str]:
    """A JSON value that is wanted in one piece."""
    pieces: list[str] = []
    yield from reader.json(pieces.append)
    return "".join(pieces)


def arguments_object(reader: Reader) -> Steps[None]:
    """The arguments of a call that has begun: a JSON object, streamed. Nothing at all counts as none."""
    yield from reader.space()
    if (yield from reader.peek()) not in ("{", ""):
        raise Malformed("the arguments are not an object")
    yield from reader.json(reader.arguments)

"""Arguments that a model writes as plain text, to the JSON values that the tool's schema asks for."""

import json
from typing import Any, Final, Literal

from worker.text.toolcalls.json_text import dumps
from worker.text.toolcalls.literals import parse_literal
from worker.text.toolcalls.tools import Schema

Untyped = Literal["text", "json"]
"""What an argument is that the schema says nothing of: text as it stands, or JSON where it parses."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_OTHER_NAMES: Final = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean",
    "dict": "object", "list": "array",
}  # fmt: skip


def types_of(schema: Schema | None) -> frozenset[str]:
    """JSON types that `schema` allows; empty when it does not say."""
    if not schema:
        return frozenset()
    found: set[str] = set()
    declared = schema.get("type")
    for name in declared if isinstance(declared, list) else [declared]:
        if isinstance(name, str):
            found.add(_OTHER_NAMES.get(name.lower(), name.lower()))
    if not found:
        constants = schema.get("enum")
        values = list(constants) if isinstance(constants, list) else []
        if "const" in schema:
            values.append(schema["const"])
        found.update(_type_of(value) for value in values)
    for combined in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(combined)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                found |= types_of(choice)
    return frozenset(found)


def is_text(schema: Schema | None, untyped: Untyped) -> bool:
    """Whether the argument is a string whatever it looks like, so that it can be passed on as it comes."""
    types = types_of(schema)
    return types == {"string"} or (not types and untyped == "text")


def to_json(text: str, schema: Schema | None, untyped: Untyped) -> str:
    """The JSON value of an argument written as `text`.

    What the schema's types don't allow for stays text: the tool's owner is told more by the model's own
    words than by a refusal.
    """
    types = types_of(schema)
    if is_text(schema, untyped):
        return dumps(text)
    bare = text.strip()
    for wanted in _ORDER:
        if wanted in types:
            converted = _convert(bare, wanted)
            if converted is not None:
                return converted
    if "string" in types or (not types and untyped == "text"):
        return dumps(text)
    parsed = _parse(bare)
    return dumps(text) if parsed is None else parsed


_ORDER: Final = ("null", "boolean", "integer", "number", "object", "array")


def _convert(text: str, wanted: str) -> str | None:
    if wanted == "null":
        return "null" if text in ("null", "None") else None
    if wanted == "boolean":
        return "true" if text.lower() in _TRUE else "false" if text.lower() in _FALSE else None
    if wanted in ("integer", "number"):
        return _number(text, whole=wanted == "integer")
    value = _parse(text)
    return value if value is not None and value.startswith("{" if wanted == "object" else "[") else None


def _number(text: str, *, whole: bool) -> str | None:
    try:
        return dumps(int(text))
    except ValueError:
        pass
    try:
        number = float(text)
        if number.is_integer():
            return dumps(int(number))
        return None if whole else dumps(number)
    except (ValueError, OverflowError):
        return None


def _parse(text: str) -> str | None:
    """JSON for text that is JSON or a Python literal; None when it is neither."""
    try:
        return dumps(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        pass
    return parse_literal(text)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"

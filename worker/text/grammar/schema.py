"""JSON schemas from requests: checked, bounded, and made ready for the grammar compiler."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from shared.errors import PublicError

Json = Any
"""Any JSON value."""

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 64
MAX_CHOICES: Final = 2_000
"""Values of one enum."""
MAX_PROPERTIES: Final = 1_000
"""Properties of one object: compiling takes the square of those that are optional."""

_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_ONE: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_MANY: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# With these beside or above it, an object is only a part of what its value must be.
_COMBINING: Final = ("allOf", "anyOf", "oneOf", "$ref", "if", "patternProperties", "unevaluatedProperties")

COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON spaced as chat templates write it, so as models were trained to."""

READABLE: Final = {"whitespace_pattern": r"(\n[ ]{0,32}|\n\t{0,8}|[ ])"}
"""JSON on one line or indented. Without a bound a small model may go on with white space for ever."""


def check(schema: Json, param: str) -> None:
    """Raises PublicError 400 for what is not a JSON schema, or is too large to compile in good time."""
    if not isinstance(schema, dict):
        raise _invalid(param, "a schema is a JSON object")
    if len(orjson.dumps(schema)) > MAX_BYTES:
        raise _invalid(param, f"the schema is larger than {MAX_BYTES // 1024} KiB")
    for node, path, depth in _walk(schema, param, 0):
        if depth > MAX_DEPTH:
            raise _invalid(param, f"the schema is nested more than {MAX_DEPTH} levels deep")
        _check_node(node, path)


def _check_node(node: Json, path: str) -> None:
    if isinstance(node, bool):
        return
    if not isinstance(node, dict):
        raise _invalid(path, "a schema is a JSON object or a boolean")
    declared = node.get("type", [])
    for name in declared if isinstance(declared, list) else [declared]:
        if name not in _TYPES:
            raise _invalid(f"{path}.type", f"{name!r} is not a JSON type")
    for key in _NAMED:
        if not isinstance(node.get(key, {}), dict):
            raise _invalid(f"{path}.{key}", f"`{key}` is an object")
    for key in _MANY:
        if not isinstance(node.get(key, []), list):
            raise _invalid(f"{path}.{key}", f"`{key}` is a list")
    if len(node.get("properties", ())) > MAX_PROPERTIES:
        raise _invalid(f"{path}.properties", f"an object may have {MAX_PROPERTIES} properties")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _invalid(f"{path}.required", "`required` is a list of names")
    choices = node.get("enum", [None])
    if not isinstance(choices, list) or not choices:
        raise _invalid(f"{path}.enum", "`enum` is a list of at least one value")
    if len(choices) > MAX_CHOICES:
        raise _invalid(f"{path}.enum", f"an enum may have {MAX_CHOICES} values")


def _walk(node: Json, path: str, depth: int) -> Iterator[tuple[Json, str, int]]:
    yield node, path, depth
    # Deeper than allowed is reported once; the rest need not be looked at.
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        return
    for key in _ONE:
        if key in node:
            child = node[key]
            # Before draft 2020-12 `items` could be a list.
            if key == "items" and isinstance(child, list):
                for index, item in enumerate(child):
                    yield from _walk(item, f"{path}.items[{index}]", depth + 1)
            else:
                yield from _walk(child, f"{path}.{key}", depth + 1)
    for key in _MANY:
        children = node.get(key)
        if isinstance(children, list):
            for index, item in enumerate(children):
                yield from _walk(item, f"{path}.{key}[{index}]", depth + 1)
    for key in _NAMED:
        named = node.get(key)
        if isinstance(named, dict):
            for name, item in named.items():
                yield from _walk(item, f"{path}.{key}.{name}", depth + 1)


def closed(schema: Json, *, part: bool = False) -> Json:
    """The schema with objects closed that name their properties and don't say that others may come.

    What the closed schema allows the open one allows too, and models don't add what nobody asked for.
    `part` is for schemas that must hold together with others: those stay open.
    """
    if isinstance(schema, list):
        return [closed(item, part=part) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Json] = {}
    combined = any(key in schema for key in _COMBINING)
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            # A definition may be used as a part, wherever that is.
            inside = part and key != "properties"
            out[key] = {name: closed(child, part=inside) for name, child in value.items()}
        elif key == "allOf":
            out[key] = closed(value, part=True)
        elif key in ("anyOf", "oneOf"):
            out[key] = closed(value, part=part or len(schema.keys() & {"properties", "allOf", "$ref"}) > 0)
        elif key in ("items", "additionalProperties", "prefixItems"):
            out[key] = closed(value)
        else:
            out[key] = value
    if "properties" in out and "additionalProperties" not in out and not combined and not part:
        out["additionalProperties"] = False
    return out


def _uses_references_in_parts(schema: Json) -> bool:
    """Whether some `allOf` refers to a definition, which then must stay open."""
    return b'"allOf"' in orjson.dumps(schema) and b'"$ref"' in orjson.dumps(schema)


def prepared(
    schema: Mapping[str, Json], layout: Mapping[str, Json], *, lenient: bool = False
) -> dict[str, Json]:
    """The schema as the compiler takes it: closed, laid out, and with `lenient` unsupported keywords ignored.

    Source of `x-guidance`: llguidance's documentation of its JSON schema compiler.
    """
    source = dict(schema)
    ready = source if _uses_references_in_parts(source) else closed(source)
    # A client's own x-guidance may unbound what we bound.
    return {**ready, "x-guidance": {**layout, "lenient": lenient}}


def _invalid(param: str, reason: str) -> PublicError:
    return PublicError(400, "invalid_schema", f"The schema can't be used: {reason}.", param=param)

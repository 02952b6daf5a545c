"""Enough of JSON schema to check what grammars let through, written apart from them."""

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "object": (dict,), "array": (list,),
}  # fmt: skip


def problem(value: Any, schema: Any, root: Any = None, path: str = "$") -> str | None:
    """What is wrong with `value`; None when it conforms."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return None if schema else f"{path}: nothing is allowed"
    if "$ref" in schema:
        target = root
        for step in filter(None, schema["$ref"].removeprefix("#").split("/")):
            target = target[step]
        return problem(value, target, root, path)
    if "anyOf" in schema and all(problem(value, choice, root, path) for choice in schema["anyOf"]):
        return f"{path}: none of anyOf"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path}: {value!r} is not in the enum"
    if "const" in schema and value != schema["const"]:
        return f"{path}: {value!r} is not the constant"
    declared = schema.get("type")
    kinds = declared if isinstance(declared, list) else [declared] if declared else []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{path}: {value!r} is not {declared}"
    return _bounds(value, schema, path) or _inside(value, schema, root, path)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _bounds(value: Any, schema: dict[str, Any], path: str) -> str | None:
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9):
            return f"{path}: {len(value)} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return f"{path}: {value!r} does not match"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not schema.get("minimum", -1e300) <= value <= schema.get("maximum", 1e300):
        return f"{path}: {value} is out of bounds"
    if isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get(
        "maxItems", 10**9
    ):
        return f"{path}: {len(value)} items"
    return None


def _inside(value: Any, schema: dict[str, Any], root: Any, path: str) -> str | None:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{path}: {name} is missing"
        for name, item in value.items():
            inner = properties.get(name, schema.get("additionalProperties", not properties))
            found = problem(item, inner, root, f"{path}.{name}")
            if found:
                return found
    if isinstance(value, list) and "items" in schema:
        return next(filter(None, (problem(i, schema["items"], root, f"{path}[]") for i in value)), None)
    return None

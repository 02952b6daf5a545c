"""Values in Gemma's syntax, bare keys and a string delimiter of their own, from a JSON schema.

Only what decides the shape of a value is followed: types, properties, items, enums, alternatives and
references. Bounds of numbers and patterns of strings are left to the model.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from worker.text.grammar.lark import Grammar, Rule
from worker.text.grammar.schema import Json
from worker.text.toolcalls.tools import Schema
from worker.text.toolcalls.values import types_of

_DEEPEST: Final = 24


class BareKeys:
    """Rules for the arguments of one tool. `root` is the schema of all of them."""

    def __init__(self, grammar: Grammar, root: Schema, quote: str) -> None:
        self._grammar = grammar
        self._root = root
        self._quote = quote
        self._named: dict[str, Rule] = {}
        self._any: Rule | None = None

    def arguments(self) -> Rule:
        """`{key:value,...}` with everything that the schema names."""
        return self._object(self._root, 0)

    def _object(self, schema: Schema, depth: int) -> Rule:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return self._grammar.sequence("{}")
        needed = schema.get("required", ())
        required: list[Rule] = []
        optional: list[Rule] = []
        for key, child in properties.items():
            member = self._grammar.sequence(f"{key}:", self._value(child, depth + 1))
            (required if key in needed else optional).append(member)
        return self._grammar.sequence("{", self._grammar.separated(required, optional, ","), "}")

    def _value(self, schema: Json, depth: int) -> Rule:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return self._anything()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference, depth)
        constants = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(constants, list):
            return self._grammar.any_of([self._grammar.sequence(self._written(value)) for value in constants])
        for combined in ("anyOf", "oneOf"):
            choices = schema.get(combined)
            if isinstance(choices, list) and choices:
                return self._grammar.any_of([self._value(choice, depth + 1) for choice in choices])
        kinds = sorted(types_of(schema))
        if not kinds:
            return self._object(schema, depth) if "properties" in schema else self._anything()
        return self._grammar.any_of([self._typed(kind, schema, depth) for kind in kinds])

    def _typed(self, kind: str, schema: Schema, depth: int) -> Rule:
        match kind:
            case "string":
                return self._grammar.sequence(self._quote, self._grammar.text(schema, self._quote))
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case _:
                bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
                kept = {key: schema[key] for key in bounds if key in schema}
                return self._grammar.json({"type": kind, **kept})

    def _array(self, schema: Schema, depth: int) -> Rule:
        item = self._value(schema.get("items"), depth + 1)
        least = schema.get("minItems", 0)
        most = schema.get("maxItems")
        if most == 0:
            return self._grammar.sequence("[]")
        low = max(0, int(least) - 1) if isinstance(least, int) else 0
        high = int(most) - 1 if isinstance(most, int) else ""
        several = self._grammar.rule(f'{item.name} ("," {item.name}){{{low},{high}}}')
        inside = several if least else self._grammar.optional(several)
        return self._grammar.sequence("[", inside, "]")

    def _reference(self, reference: str, depth: int) -> Rule:
        known = self._named.get(reference)
        if known is None:
            # The name first: the schema may refer to itself.
            known = self._named[reference] = self._grammar.reserve()
            self._grammar.define(known, self._value(self._found(reference), depth + 1).name)
        return known

    def _found(self, reference: str) -> Json:
        target: Any = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        return target

    def _anything(self) -> Rule:
        if self._any is None:
            text = self._grammar.sequence(self._quote, self._grammar.text({}, self._quote))
            other = self._grammar.json({"type": ["number", "boolean", "null"]})
            self._any = self._grammar.any_of([text, other])
        return self._any

    def _written(self, value: Json) -> str:
        """A constant as the syntax writes it."""
        match value:
            case str():
                return f"{self._quote}{value}{self._quote}"
            case dict():
                return "{" + ",".join(f"{key}:{self._written(item)}" for key, item in value.items()) + "}"
            case list():
                return "[" + ",".join(map(self._written, value)) + "]"
            case _:
                return orjson.dumps(value).decode()

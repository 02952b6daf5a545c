"""The tools of a request, as its calls and their grammars need them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Schema = Mapping[str, Any]


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any] = {}
    description: str = ""

    @property
    def properties(self) -> dict[str, Any]:
        """The schema of each argument by its name."""
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, dict) else {}

    @property
    def required(self) -> frozenset[str]:
        required = self.parameters.get("required")
        return frozenset(required) if isinstance(required, list) else frozenset()


class Tools:
    """The tools of one request. `raw` is how the API words them, and how mlx-lm's parsers want them."""

    def __init__(self, raw: Sequence[Mapping[str, Any]] = ()) -> None:
        self.raw = [dict(tool) for tool in raw]
        self.all = tuple(tool for tool in map(_tool, raw) if tool is not None)
        self._by_name = {tool.name: tool for tool in self.all}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def begins_name(self, text: str) -> bool:
        """Whether the name of some tool begins with `text`."""
        return any(name.startswith(text) for name in self._by_name)

    def argument(self, tool: str, name: str) -> Schema | None:
        """The schema of one argument; None when it is not known."""
        known = self._by_name.get(tool)
        schema = known.properties.get(name) if known else None
        return _resolved(schema, known.parameters) if known and isinstance(schema, dict) else None


def _tool(raw: Mapping[str, Any]) -> Tool | None:
    function = raw.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return None
    parameters = function.get("parameters")
    return Tool(
        function["name"],
        dict(parameters) if isinstance(parameters, Mapping) else {},
        str(function.get("description") or ""),
    )


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Follow `$ref` inside the document, as far as it goes."""
    for _ in range(16):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target: Any = root
        for step in reference[2:].split("/"):
            target = (
                target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
            )
        if not isinstance(target, dict):
            return schema
        schema = target
    return schema

"""Writes deploy/config.schema.json: `python -m supervisor.settings.schema > deploy/config.schema.json`.

Editors complete and check `config.toml` with it. A test compares the file with what this module makes.
"""

import json
import sys
from typing import Final

from supervisor.settings.keys import EFFORTS, TABLES, Key, keys_of, model_keys

Schema = dict[str, object]

_SIZE: Final = r"^\s*\d+(\.\d+)?\s*([KkMmGgTt][Ii]?[Bb]|[Bb])?\s*$"
_DURATION: Final = r"^\s*\d+(\.\d+)?\s*([Mm][Ss]|[SsMmHhDd])\s*$"


def schema() -> Schema:
    """The JSON Schema (2020-12) of `config.toml`.

    It is for editors: what it refuses is refused at the start too, but bounds of sizes and durations and
    contradictions between keys are told by `mlx-supervisor config check` alone.
    """
    tables: Schema = {
        name: _table(
            [key for key in keys_of(struct, (name,)) if not (name == "defaults" and key.one_model)], 1
        )
        for name, struct in TABLES.items()
    }
    tables["models"] = {
        "type": "object",
        "description": "One table for each model, by its id.",
        "additionalProperties": _table(model_keys("ID"), 2),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of mlx-supervisor (config.toml)",
        "type": "object",
        "additionalProperties": False,
        "properties": tables,
    }


def _table(keys: list[Key], depth: int) -> Schema:
    properties: dict[str, object] = {}
    for key in keys:
        *tables, name = key.path[depth:]
        inner = properties
        for table in tables:
            nested = inner.setdefault(
                table, {"type": "object", "additionalProperties": False, "properties": {}}
            )
            assert isinstance(nested, dict)
            inner = nested["properties"]
        inner[name] = {"description": key.doc, **_form(key)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _form(key: Key) -> Schema:
    bounds: Schema = {}
    if key.low is not None:
        bounds["minimum"] = key.low
    if key.high is not None:
        bounds["maximum"] = key.high
    match key.kind:
        case "text":
            return {"type": "string"}
        case "texts":
            return {"type": "array", "items": {"type": "string"}}
        case "named texts":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case "values":
            return {"type": "object"}
        case "choice":
            return {"enum": list(key.choices)}
        case "switch":
            return {"type": "boolean"}
        case "thinking":
            return {"anyOf": [{"type": "boolean"}, {"enum": list(EFFORTS)}]}
        case "budget":
            forms = {"type": "string", "pattern": rf"{_SIZE}|^\s*\d+(\.\d+)?\s*%\s*$|^auto$"}
            return {"anyOf": [{"type": "integer", "minimum": 1}, forms]}
        case "size":
            return {"anyOf": [{"type": "integer", **bounds}, {"type": "string", "pattern": _SIZE}]}
        case "duration":
            pattern: Schema = {"type": "string", "pattern": _DURATION}
            return {"anyOf": [pattern, {"const": "never"}]} if key.never else pattern
        case "whole number":
            return {"type": "integer", **bounds}
        case "number":
            return {"type": "number", **bounds}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")

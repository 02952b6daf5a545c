"""What a request asks its answer to look like, as OpenAI and vLLM name it, to one specification."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import orjson

from shared.errors import PublicError, invalid

MAX_TEXT_BYTES: Final = 64 * 1024
MAX_CHOICES: Final = 2_000

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "calls"]


class Spec(msgspec.Struct, frozen=True):
    """One constraint. Equal specifications share one compiled grammar.

    `source` is the schema as JSON, the regular expression, the choices as a JSON list, the grammar in Lark or
    GBNF, or for forced calls the grammar that the call syntax gave.
    """

    kind: Kind
    source: str = ""
    strict: bool = True
    """Whether a schema that can't be compiled is an error; otherwise it becomes a part of the prompt."""
    param: str = "response_format"
    """The request's field, for errors."""
    reply: str = ""
    """The grammar of the reply around the answer, which it calls `@answer`; see Dialect."""
    spans: bool = False
    """Whether the grammar is of the whole reply, its thinking included."""

    @property
    def schema(self) -> Any:
        """The parsed JSON of `source`."""
        return orjson.loads(self.source)


def spec_of(fields: Mapping[str, Any]) -> Spec | None:
    """The constraint that a request's fields ask for; None when they ask for none.

    Looks at `response_format`, `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and
    `structured_outputs`; fields that are None count as absent. Raises PublicError 400 that names the field.
    Sources: OpenAI's API reference; vLLM's documentation of its extra parameters.
    """
    found = [spec for spec in (_response_format(fields), *_guided(fields), *_structured(fields)) if spec]
    if len(found) > 1:
        names = " and ".join(f"`{spec.param}`" for spec in found)
        raise invalid(f"{names} can't be combined; ask for one structure.", param=found[1].param)
    return found[0] if found else None


def _response_format(fields: Mapping[str, Any]) -> Spec | None:
    value = fields.get("response_format")
    if value is None:
        return None
    param = "response_format"
    if not isinstance(value, Mapping):
        raise invalid("`response_format` is an object with a `type`.", param=param)
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return Spec("json_object", param=param)
        case "json_schema":
            return _named_schema(value.get("json_schema"))
    raise invalid("`type` is `text`, `json_object` or `json_schema`.", param=f"{param}.type")


def _named_schema(named: Any) -> Spec:
    param = "response_format.json_schema"
    if not isinstance(named, Mapping):
        raise invalid("`json_schema` is an object with a `name` and a `schema`.", param=param)
    strict = named.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise invalid("`strict` is true or false.", param=f"{param}.strict")
    if "schema" not in named:
        raise invalid("`schema` is missing.", param=f"{param}.schema", code="missing_required_parameter")
    return _schema(named["schema"], f"{param}.schema", strict=bool(strict))


def _guided(fields: Mapping[str, Any]) -> list[Spec | None]:
    return [
        _of("json", fields.get("guided_json"), "guided_json"),
        _of("regex", fields.get("guided_regex"), "guided_regex"),
        _of("choice", fields.get("guided_choice"), "guided_choice"),
        _of("grammar", fields.get("guided_grammar"), "guided_grammar"),
    ]


def _structured(fields: Mapping[str, Any]) -> list[Spec | None]:
    value = fields.get("structured_outputs")
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise invalid("`structured_outputs` is an object.", param="structured_outputs")
    known = ("json", "regex", "choice", "grammar", "json_object")
    for name in value:
        # vLLM's further fields tune its backends and change nothing of what is asked for.
        if name not in (*known, "disable_fallback", "disable_any_whitespace", "whitespace_pattern"):
            raise invalid(
                f"`structured_outputs` takes one of {', '.join(known)}.", param=f"structured_outputs.{name}"
            )
    return [_of(name, value.get(name), f"structured_outputs.{name}") for name in known]


def _of(name: str, value: Any, param: str) -> Spec | None:
    if value is None or value is False:
        return None
    match name:
        case "json":
            return _schema(_parsed(value, param), param, strict=True)
        case "json_object":
            return Spec("json_object", param=param)
        case "choice":
            return _choice(value, param)
        case "regex" | "grammar" if isinstance(value, str) and value.strip():
            if len(value.encode()) > MAX_TEXT_BYTES:
                raise invalid(f"It is larger than {MAX_TEXT_BYTES // 1024} KiB.", param=param)
            return Spec("regex" if name == "regex" else "grammar", value, param=param)
    raise invalid(f"`{param}` is text.", param=param)


def _parsed(value: Any, param: str) -> Any:
    """vLLM takes a schema as JSON text too."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise PublicError(400, "invalid_schema", f"The schema is not JSON: {error}.", param=param) from None


def _schema(schema: Any, param: str, *, strict: bool) -> Spec:
    if not isinstance(schema, dict):
        raise PublicError(400, "invalid_schema", "A schema is a JSON object.", param=param)
    return Spec("json_schema", orjson.dumps(schema).decode(), strict, param)


def _choice(value: Any, param: str) -> Spec:
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= MAX_CHOICES
        or not all(isinstance(choice, str) and choice for choice in value)
    ):
        raise invalid(f"A choice is a list of 1 to {MAX_CHOICES} texts.", param=param)
    return Spec("choice", orjson.dumps(value).decode(), param=param)

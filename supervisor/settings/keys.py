"""The keys of the configuration: what each may be, told from the structs, and values read by it."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args, get_origin

import msgspec

from shared.launch import Effort
from shared.sizes import parse_duration, parse_size
from supervisor.settings.model import (
    CatalogSettings,
    HistorySettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
    ServerSettings,
    WatchSettings,
)

Kind = Literal[
    "text",
    "texts",
    "named texts",
    "choice",
    "values",
    "switch",
    "thinking",
    "whole number",
    "number",
    "size",
    "duration",
    "budget",
]
Value = str | tuple[str, ...] | Mapping[str, str] | Mapping[str, object] | bool | int | float
Path = tuple[str, ...]

_KINDS: Final[dict[object, Kind]] = {
    str: "text",
    tuple[str, ...]: "texts",
    Mapping[str, str]: "named texts",
    Mapping[str, object]: "values",
    bool: "switch",
    int: "whole number",
    float: "number",
}
_SWITCHES: Final = {"true": True, "1": True, "false": False, "0": False}
EFFORTS: Final[tuple[str, ...]] = get_args(Effort)
_BUDGETS: Final = 'a size such as "48GiB", a share of the memory such as "60%", or "auto"'
_SHOWN_CHARACTERS: Final = 60

_LEAST_BUDGET_BYTES: Final = 2**20


class Key(msgspec.Struct, frozen=True):
    """One key. `low` and `high` are inclusive, in bytes or seconds where it is a size or a duration."""

    path: Path
    kind: Kind
    doc: str
    default: object
    low: float | None = None
    high: float | None = None
    never: bool = False
    """Whether `never` is allowed for a duration."""
    one_model: bool = False
    """Not inherited from `[defaults]`."""
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str | None:
        """The environment variable that sets it; lists and single models have none."""
        if self.kind in ("texts", "named texts", "values") or self.one_model:
            return None
        return "_".join(("MLX_SUPERVISOR", *self.path)).upper()

    def form(self) -> str:
        """What is allowed, as the end of a sentence that begins with "must be"."""
        match self.kind:
            case "text":
                return "a text in quotes"
            case "texts":
                return 'a list of texts such as ["a", "b"]'
            case "named texts":
                return 'a table of texts such as { a = "b" }'
            case "choice":
                return " or ".join(f'"{choice}"' for choice in self.choices)
            case "values":
                return 'a table such as { a = 1, b = "c" } of what JSON knows too'
            case "switch":
                return "true or false"
            case "thinking":
                return f"true, false or an effort ({', '.join(EFFORTS)})"
            case "size":
                return f'a size such as "64MiB"{self._range(_size)}'
            case "duration":
                never = ', or "never"' if self.never else ""
                return f'a duration such as "90s", "30m" or "2h"{self._range(_duration)}{never}'
            case "budget":
                return f"{_BUDGETS}, at least {_size(_LEAST_BUDGET_BYTES)}"
            case "whole number" | "number":
                return f"a {self.kind}{self._range(_plain)}"

    def allowed(self) -> str:
        """What is allowed, for the reference, which explains sizes and durations once."""
        if self.kind == "texts":
            return "list of texts"
        if self.kind == "named texts":
            return "table of texts"
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind == "values":
            return "table"
        if self.kind == "thinking":
            return f"true, false, {', '.join(EFFORTS)}"
        if self.kind == "budget":
            return _BUDGETS
        shown = {"size": _size, "duration": _duration}.get(self.kind, _plain)
        between = (
            "" if self.low is None or self.high is None else f", {shown(self.low)} to {shown(self.high)}"
        )
        never = ", or never" if self.never else ""
        return f"{'true or false' if self.kind == 'switch' else self.kind}{between}{never}"

    def _range(self, shown: Callable[[float], str]) -> str:
        if self.low is not None and self.high is not None:
            return f" from {shown(self.low)} to {shown(self.high)}"
        return "" if self.low is None else f", at least {shown(self.low)}"

    def read(self, value: object, *, from_text: bool = False) -> Value:
        """The value as the struct holds it. `from_text` reads what an environment variable holds.

        Raises ValueError with the rest of a sentence that begins with the key's name.
        """
        result: Value | None = None
        match self.kind, value:
            case "text", str():
                result = value
            case "texts", list() | tuple():
                texts = tuple(item for item in value if isinstance(item, str))
                result = texts if len(texts) == len(value) else None
            case "named texts", dict() if all(isinstance(text, str) for text in value.values()):
                result = value
            case "choice", str():
                result = value if value in self.choices else None
            case "values", dict() if _is_json(value):
                result = value
            case "switch", bool():
                result = value
            case "switch", str() if from_text:
                result = _SWITCHES.get(value.lower())
            case "thinking", bool():
                result = value
            case "thinking", str():
                result = value if value in EFFORTS else None
                if from_text and result is None:
                    result = _SWITCHES.get(value.lower())
            case "budget", str() | int() if not isinstance(value, bool):
                result = _budget(str(value))
            case "duration", str():
                result = self._allowed(_quietly(parse_duration, value))
            case "size", str():
                result = self._allowed(_quietly(parse_size, value))
            case (("size" | "whole number"), int()):
                result = self._allowed(value)
            case "whole number", str() if from_text:
                result = self._allowed(_quietly(int, value))
            case "number", int() | float():
                result = self._allowed(value)
            case "number", str() if from_text:
                result = self._allowed(_quietly(float, value))
        if result is None:
            raise ValueError(f"must be {self.form()}, not {shown_value(value)}")
        return float(result) if self.kind == "number" else result  # type: ignore[arg-type]

    def _allowed(self, value: float | None) -> float | None:
        if value is None or isinstance(value, bool):
            return None
        if math.isinf(value):
            return value if self.never and value > 0 else None
        # NaN compares false with everything: written so that it is refused.
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return value if inside and not math.isnan(value) else None


def shown_value(value: object) -> str:
    """The value as the configuration would write it, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        text = str(value)
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def dotted(path: Path) -> str:
    """`server.port`, `models."qwen3-8b".context`: as TOML would write it."""
    return ".".join(part if _is_bare(part) else _quoted(part) for part in path)


def _quoted(text: str) -> str:
    # TOML takes JSON's escapes, but also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_bare(part: str) -> bool:
    return bool(part) and all(
        character.isascii() and (character.isalnum() or character in "-_") for character in part
    )


def _quietly(parse: Callable[[str], float], text: str) -> float | None:
    try:
        return parse(text)
    except ValueError:
        return None


def _is_json(value: object) -> bool:
    """Whether JSON can say it: TOML also has dates, infinities and nan."""
    match value:
        case dict():
            return all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
        case float():
            return math.isfinite(value)
        case _:
            return isinstance(value, str | int)


def _budget(text: str) -> str | None:
    """The text, if it stands for a budget. How much that is only the machine tells."""
    if text == "auto":
        return text
    whole = 2**50
    size = _quietly(lambda text: parse_size(text, whole_bytes=whole), text)
    if size is None or not 0 < size <= whole:
        return None
    # Who leaves out the unit means anything but bytes.
    return text if "%" in text or size >= _LEAST_BUDGET_BYTES else None


def _size(size_bytes: float) -> str:
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes / factor:.0f}{unit}"
    return f"{size_bytes:.0f}"


def _duration(seconds: float) -> str:
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= factor and seconds % factor == 0:
            return f"{seconds / factor:.0f}{unit}"
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def _plain(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def written(key: Key) -> str:
    """The key's default as TOML writes it; empty for none."""
    return written_value(key, key.default)


def written_value(key: Key, value: object) -> str:
    """A value of the key as TOML writes it; empty for none."""
    match key.kind, value:
        case _, None:
            return ""
        case "size", int() | float():
            return f'"{_size(value)}"'
        case "duration", int() | float():
            return '"never"' if math.isinf(value) else f'"{_duration(value)}"'
        case _:
            return _toml(value)


def _toml(value: object) -> str:
    """Any value that a configuration may hold, in one line."""
    match value:
        case Mapping():
            pairs = ", ".join(f"{dotted((str(name),))} = {_toml(item)}" for name, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return _quoted(value)
        case _:
            return json.dumps(value)


def keys_of(struct: type[msgspec.Struct], table: Path) -> list[Key]:
    """The keys of a settings struct as they are under `table`, those of nested structs included."""
    keys: list[Key] = []
    for field in msgspec.structs.fields(struct):
        path = (*table, field.encode_name)
        meta, inner = _unwrapped(field.type)
        extra = (meta.extra if meta else None) or {}
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            keys.extend(keys_of(inner, path))
            continue
        choices = get_args(inner) if get_origin(inner) is Literal else ()
        kind: Kind = "choice" if choices else extra.get("form") or _KINDS[inner]
        keys.append(
            Key(
                path=path,
                kind=kind,
                doc=(meta.description if meta else None) or "",
                default={} if kind in ("named texts", "values") else field.default,
                low=meta.ge if meta else None,
                high=meta.le if meta else None,
                never=bool(extra.get("never")),
                one_model=bool(extra.get("one_model")),
                choices=choices,
            )
        )
    return keys


def _unwrapped(annotation: object) -> tuple[msgspec.Meta | None, object]:
    """The `Meta` and the plain type of a field; `None` in a union only means that it may be absent."""
    metas = getattr(annotation, "__metadata__", ())
    meta = next((item for item in metas if isinstance(item, msgspec.Meta)), None)
    if meta is not None:
        return meta, _unwrapped(get_args(annotation)[0])[1]
    members = [member for member in get_args(annotation) if member is not type(None)]
    if len(members) == 1 and type(None) in get_args(annotation):
        return _unwrapped(members[0])
    return None, annotation


TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "server": ServerSettings,
    "memory": MemorySettings,
    "catalog": CatalogSettings,
    "watch": WatchSettings,
    "log": LogSettings,
    "history": HistorySettings,
    "defaults": ModelSettings,
}
"""The tables that are always there; each `[models."ID"]` is a ModelSettings too."""


def fixed_keys() -> list[Key]:
    """Every key outside `[models]`."""
    return [
        key
        for name, struct in TABLES.items()
        for key in keys_of(struct, (name,))
        if not (name == "defaults" and key.one_model)
    ]


def model_keys(model_id: str) -> list[Key]:
    """Every key of one model's table."""
    return keys_of(ModelSettings, ("models", model_id))

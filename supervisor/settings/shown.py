"""Settings as people read them: each value, and where it came from."""

from collections.abc import Iterator, Mapping

import msgspec

from supervisor.settings.keys import (
    TABLES,
    Key,
    dotted,
    keys_of,
    model_keys,
    written_value,
)
from supervisor.settings.model import Origin, Settings

__all__ = ["ShownValue", "as_toml", "shown_values"]

DEFAULT = "default"


class ShownValue(msgspec.Struct, frozen=True):
    """One resolved setting, as `GET /api/config` and `mlx-supervisor config show --json` tell it."""

    table: str
    """`server`, or `models."qwen3-8b"`."""
    key: str
    """Within the table: `sampling.top_p`."""
    value: str | None
    """As TOML writes it; None when it is not set and has no default."""
    source: str
    """`default`, `file`, `environment` or `flag`."""
    where: str = ""
    """`FILE:LINE` or the variable's name."""
    inherited: bool = False
    """A model's value that comes from `[defaults]`."""


def shown_values(settings: Settings) -> list[ShownValue]:
    """Every value of every table, those of each configured model included, in the reference's order."""
    values: list[ShownValue] = []
    for name, struct in TABLES.items():
        keys = [key for key in keys_of(struct, (name,)) if not (name == "defaults" and key.one_model)]
        values.extend(_table(settings, getattr(settings, name), keys))
    for model_id, model in settings.models.items():
        values.extend(_table(settings, model, model_keys(model_id)))
    return values


def _table(settings: Settings, struct: msgspec.Struct, keys: list[Key]) -> Iterator[ShownValue]:
    for key in keys:
        depth = 2 if key.path[0] == "models" else 1
        table, rest = key.path[:depth], key.path[depth:]
        origin, inherited = _origin(settings, key, rest)
        yield ShownValue(
            table=dotted(table),
            key=dotted(rest),
            value=written_value(key, _value(struct, rest)) or None,
            source=origin.source if origin else DEFAULT,
            where=origin.where if origin else "",
            inherited=inherited,
        )


def _origin(settings: Settings, key: Key, rest: tuple[str, ...]) -> tuple[Origin | None, bool]:
    own = settings.origins.get(dotted(key.path))
    if own is not None or key.path[0] != "models" or key.one_model:
        return own, False
    inherited = settings.origins.get(dotted(("defaults", *rest)))
    return inherited, inherited is not None


def _value(struct: msgspec.Struct, names: tuple[str, ...]) -> object:
    """The value below `struct` by the names that the configuration uses."""
    value: object = struct
    for name in names:
        assert isinstance(value, msgspec.Struct)
        field = next(field for field in msgspec.structs.fields(value) if field.encode_name == name)
        value = getattr(value, field.name)
    return value


def as_toml(values: list[ShownValue], *, origins: bool) -> str:
    """The values as a configuration that would make them, with where each came from if asked.

    What is not set stands as a comment. Every text that this makes is a valid configuration.
    """
    parts: list[str] = []
    tables: Mapping[str, list[ShownValue]] = _by_table(values)
    for table, rows in tables.items():
        lines = [f"{row.key} = {row.value}" if row.value is not None else f"# {row.key}" for row in rows]
        if origins:
            width = min(60, max(len(line) for line in lines))
            lines = [f"{line:<{width}}  # {_told(row)}" for line, row in zip(lines, rows, strict=True)]
        parts.append("\n".join([f"[{table}]", *lines, ""]))
    return "\n".join(parts)


def _by_table(values: list[ShownValue]) -> Mapping[str, list[ShownValue]]:
    tables: dict[str, list[ShownValue]] = {}
    for value in values:
        tables.setdefault(value.table, []).append(value)
    return tables


def _told(row: ShownValue) -> str:
    told = row.where or row.source if row.source != "flag" else "command line"
    if row.value is None and row.source == DEFAULT:
        told = "not set"
    return f"{told}, from [defaults]" if row.inherited else told

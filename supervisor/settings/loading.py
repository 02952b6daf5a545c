"""Reads the configuration: file, then environment, then flags, each over the one before."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from supervisor.settings.checks import check
from supervisor.settings.keys import (
    TABLES,
    Key,
    Value,
    dotted,
    fixed_keys,
    model_keys,
    shown_value,
)
from supervisor.settings.lines import KeyPath, key_lines, line_of
from supervisor.settings.model import (
    CatalogSettings,
    HistorySettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
    Origin,
    ServerSettings,
    Settings,
    SettingsError,
    WatchSettings,
)

MAX_FILE_BYTES: Final = 2**20
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_PREFIX: Final = "MLX_SUPERVISOR_"
_WHERE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


def load_settings(
    path: Path,
    *,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    preload: Sequence[str] = (),
    required: bool = False,
) -> Settings:
    """The settings that `path`, the environment and the flags make together.

    `flags` maps dotted keys to values as the file would hold them (sizes and durations as texts or as
    numbers of bytes). `preload` are ids or aliases of models to load at the start, over what the file
    says. A missing file means defaults unless it is `required`.

    Raises SettingsError with every problem that was found, not only the first.
    """
    loader = _Loader(path)
    loader.read_file(required=required)
    loader.read_environment(environ)
    loader.read_flags(flags or {})
    if loader.problems:
        raise SettingsError(loader.problems)
    settings = loader.settings(preload)
    problems = check(settings)
    if problems:
        raise SettingsError([f"{loader.place(key)}{sentence}" for key, sentence in problems])
    return settings


class _Loader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[KeyPath, int] = {}
        self._values: dict[KeyPath, Value] = {}
        self._origins: dict[KeyPath, Origin] = {}
        self._model_ids: dict[str, None] = {}
        self.problems: list[str] = []

    def place(self, key: KeyPath) -> str:
        """Where the value of `key` was set, as the beginning of a line."""
        origin = self._origins.get(key)
        if origin is None:
            return self._file_place(key)
        return f"{origin.where}: " if origin.where else "command line: "

    def _file_place(self, key: KeyPath) -> str:
        line = line_of(self._lines, key)
        return f"{self._path}: " if line is None else f"{self._path}:{line}: "

    def _set(self, key: Key, value: object, origin: Origin) -> None:
        from_text = origin.source == "environment"
        try:
            self._values[key.path] = key.read(value, from_text=from_text)
        except ValueError as error:
            self.problems.append(f"{origin.where or 'command line'}: {dotted(key.path)} {error}")
        else:
            self._origins[key.path] = origin

    # The file.

    def read_file(self, *, required: bool) -> None:
        text = self._text(required)
        try:
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            message = str(error) or "nested too deeply"
            found = _WHERE.search(message)
            last = text.count("\n") + 1
            line = f":{found[1] or last}" if found else ""
            reason = _WHERE.sub("", message)
            raise SettingsError(
                [f"{self._path}{line}: not valid TOML: {reason[:1].lower()}{reason[1:]}"]
            ) from None
        self._lines = key_lines(text)
        keys = {key.path: key for key in fixed_keys()}
        for name, content in tables.items():
            if name == "models" and isinstance(content, dict):
                for model_id, table in content.items():
                    self._model_ids[model_id] = None
                    self._read_table(
                        table, ("models", model_id), {key.path: key for key in model_keys(model_id)}
                    )
            else:
                self._read_table(content, (name,), keys)

    def _text(self, required: bool) -> str:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            if required:
                raise SettingsError([f"{self._path}: there is no such file"]) from None
            return ""
        except OSError as error:
            raise SettingsError([f"{self._path}: can't be read: {error.strerror}"]) from None
        if len(data) > MAX_FILE_BYTES:
            raise SettingsError([f"{self._path}: is larger than 1 MiB; that is no configuration"])
        try:
            return data.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise SettingsError([f"{self._path}:{line}: not UTF-8"]) from None

    def _read_table(self, content: object, path: KeyPath, keys: Mapping[KeyPath, Key]) -> None:
        """Read what is at `path`: a value if that is a key, a table if keys are below it."""
        if (key := keys.get(path)) is not None:
            line = line_of(self._lines, path)
            self._set(key, content, Origin("file", f"{self._path}:{line}"))
        elif not any(known[: len(path)] == path for known in keys) and path != ("models",):
            self.problems.append(self._file_place(path) + _unknown(path, keys))
        elif not isinstance(content, dict):
            self.problems.append(
                f"{self._file_place(path)}{dotted(path)} must be a table, "
                f"[{dotted(path)}], not {shown_value(content)}"
            )
        else:
            for name, value in content.items():
                self._read_table(value, (*path, name), keys)

    # The environment and the command line.

    def read_environment(self, environ: Mapping[str, str]) -> None:
        keys = {key.variable: key for key in fixed_keys() if key.variable}
        ours = tuple(f"{_PREFIX}{name.upper()}_" for name in TABLES)
        for name in sorted(environ):
            if name in keys:
                # An empty variable is how a service file or a shell leaves it out.
                if environ[name] or keys[name].kind == "text":
                    self._set(keys[name], environ[name], Origin("environment", name))
            elif name.startswith(ours):
                near = _near(name, keys)
                hint = f"; did you mean {near}?" if near else ""
                self.problems.append(f"{name}: no setting has this variable{hint}")

    def read_flags(self, flags: Mapping[str, object]) -> None:
        keys = {dotted(key.path): key for key in fixed_keys()}
        for name, value in flags.items():
            self._set(keys[name], value, Origin("flag"))

    # What they make together.

    def settings(self, preload: Iterable[str]) -> Settings:
        defaults = self._build(ModelSettings(), ("defaults",))
        models = {model_id: self._build(defaults, ("models", model_id)) for model_id in self._model_ids}
        named = {alias: model_id for model_id, model in models.items() for alias in model.aliases}
        return Settings(
            server=self._build(ServerSettings(), ("server",)),
            memory=self._build(MemorySettings(), ("memory",)),
            catalog=self._build(CatalogSettings(), ("catalog",)),
            watch=self._build(WatchSettings(), ("watch",)),
            log=self._build(LogSettings(), ("log",)),
            history=self._build(HistorySettings(), ("history",)),
            defaults=defaults,
            models=models,
            preload=tuple(dict.fromkeys(named.get(name, name) for name in preload)),
            origins={dotted(path): origin for path, origin in self._origins.items()},
        )

    def _build(self, base: _Struct, table: KeyPath) -> _Struct:
        """`base` with the values that were set under `table`."""
        changes: dict[str, object] = {}
        for field in msgspec.structs.fields(base):
            path = (*table, field.encode_name)
            current = getattr(base, field.name)
            if isinstance(current, msgspec.Struct):
                changes[field.name] = self._build(current, path)
            elif path in self._values:
                value = self._values[path]
                if isinstance(current, Mapping) and isinstance(value, Mapping):
                    # Inherited entry by entry, like the keys of a table.
                    value = {**current, **value}
                changes[field.name] = value
        return msgspec.structs.replace(base, **changes)


def _unknown(path: KeyPath, keys: Mapping[KeyPath, Key]) -> str:
    """The sentence for a key or table that is not in the configuration."""
    sentence = f"{dotted(path)} is not a setting"
    of_a_model = {key.path[-1] for key in model_keys("") if key.one_model}
    if path[0] == "defaults" and path[-1] in of_a_model:
        return f'{sentence}: {path[-1]} belongs to one model, under [models."ID"]'
    known_there = {known[len(path) - 1] for known in keys if known[: len(path) - 1] == path[:-1]}
    if len(path) == 1:
        known_there.add("models")
    leaf = _near(path[-1], known_there)
    near = dotted((*path[:-1], leaf)) if leaf else None
    if near is None:
        # Perhaps in the wrong table, and perhaps misspelled as well.
        leaves = {known[-1]: dotted(known) for known in reversed(list(keys))}
        leaf = _near(path[-1], leaves)
        near = leaves[leaf] if leaf else None
    return f"{sentence}; did you mean {near}?" if near else sentence


def _near(name: str, known: Iterable[str]) -> str | None:
    import difflib  # only a wrong name needs it

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)), None)

"""The models on this machine, by the names under which requests ask for them."""

import difflib
from pathlib import Path
from typing import Final

import msgspec

from shared.errors import PublicError
from supervisor.catalog.places import SourceError, find_source, own_models
from supervisor.catalog.scan import ModelFolder, Scanner
from supervisor.home import Home
from supervisor.settings import ModelSettings, Settings

_SHOWN_CHARACTERS: Final = 80
_NEAR: Final = 3
_LISTED: Final = 5
_SHORTEST_PART: Final = 3
_ANY: Final = "*"


class ModelEntry(msgspec.Struct, frozen=True):
    """One model. `problem` says in a sentence for people why it can't be loaded; None when it should."""

    id: str
    directory: Path
    settings: ModelSettings
    architecture: str | None = None
    context: int | None = None
    """Tokens that prompt and completion may have together: the configured bound, or the model's own."""
    weights_bytes: int = 0
    problem: str | None = None
    identity: str = ""
    """Equal for equal models, wherever they lie; empty when that is not known."""
    draft: Path | None = None
    """The folder of the model that proposes what this one says."""


class Catalog:
    """What is on disk, as of the last `refresh`. Look-ups read memory only."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        self._settings = settings
        self._scanner = Scanner()
        self._entries: dict[str, ModelEntry] = {}
        self._names: dict[str, ModelEntry] = {}
        self._beginnings: list[tuple[str, ModelEntry]] = []
        self._fallback: ModelEntry | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look at the disks again. Folders that did not change are not read again."""
        own = dict(own_models(self._home.models))
        entries: dict[str, ModelEntry] = {}
        folders: set[Path] = set()
        for model_id in sorted({*own, *self._settings.models}):
            settings = self._settings.for_model(model_id)
            try:
                folder = self._folder(model_id, own)
            except SourceError as error:
                folder, found = Path(), ModelFolder(problem=str(error))
            else:
                folders.add(folder)
                found = self._scanner.scan(folder)
            entry = _entry(model_id, folder, settings, found)
            if settings.draft is not None:
                entry = self._with_draft(entry, settings.draft, own, folders)
            entries[model_id] = entry
        self._scanner.forget_except(folders)
        self._entries = entries
        self._names = _names(entries)
        self._beginnings = _beginnings(entries)
        self._fallback = self._names.get(self._settings.server.fallback_model)

    def _folder(self, model_id: str, own: dict[str, Path]) -> Path:
        if model_id not in self._settings.models:
            return own[model_id]
        source = self._settings.models[model_id].source
        return find_source(model_id, source, own=own, base=self._home.path)

    def _with_draft(
        self, entry: ModelEntry, name: str, own: dict[str, Path], folders: set[Path]
    ) -> ModelEntry:
        """With the folder of its draft, or with what is wrong with that; `folders` gets those looked at."""
        try:
            if name in self._settings.models:
                folder = self._folder(name, own)
            else:
                folder = find_source(entry.id, name, own=own, base=self._home.path, key="draft")
        except SourceError as error:
            problem = f"its draft can't be used: {error}"
            return msgspec.structs.replace(entry, problem=entry.problem or problem)
        folders.add(folder)
        wrong = self._scanner.scan(folder).problem
        if wrong is None:
            return msgspec.structs.replace(entry, draft=folder)
        problem = f"its draft {name!r} can't be used: {wrong}"
        return msgspec.structs.replace(entry, draft=folder, problem=entry.problem or problem)

    def entries(self) -> list[ModelEntry]:
        """All models, sorted by id, broken ones among them."""
        return list(self._entries.values())

    def resolve(self, name: str) -> ModelEntry:
        """The model with this id or alias; an unknown name gets the fallback model, if there is one.

        Raises PublicError, 404 `model_not_found`, with the names that are most like it.
        """
        entry = self._names.get(name) or self._by_beginning(name) or self._fallback
        if entry is None:
            raise PublicError(404, "model_not_found", self._unknown(name), param="model")
        return entry

    def _by_beginning(self, name: str) -> ModelEntry | None:
        return next((entry for start, entry in self._beginnings if name.startswith(start)), None)

    def _unknown(self, name: str) -> str:
        shown = "".join(letter if letter.isprintable() else "�" for letter in name[:_SHOWN_CHARACTERS])
        if len(name) > _SHOWN_CHARACTERS:
            shown += "…"
        said = f"The model '{shown}' does not exist here."
        if not self._names:
            return f"{said} There are no models yet; get one with: mlx-supervisor import FILE.gguf"
        near = _near(name, list(self._names)) if len(name) <= _SHOWN_CHARACTERS else []
        if near:
            return f"{said} Did you mean {' or '.join(near)}? GET /v1/models lists all."
        listed = ", ".join(list(self._entries)[:_LISTED])
        more = ", among others" if len(self._entries) > _LISTED else ""
        return f"{said} There are: {listed}{more}. GET /v1/models lists all."


def _entry(model_id: str, folder: Path, settings: ModelSettings, found: ModelFolder) -> ModelEntry:
    context = found.context
    if settings.context is not None:
        context = settings.context if context is None else min(context, settings.context)
    return ModelEntry(
        id=model_id,
        directory=folder,
        settings=settings,
        architecture=found.architecture,
        context=context,
        weights_bytes=found.weights_bytes,
        problem=found.problem,
        identity=found.identity,
    )


def _names(entries: dict[str, ModelEntry]) -> dict[str, ModelEntry]:
    """Every name that is answered for. An id beats an alias; of two equal aliases the first stands."""
    aliases: dict[str, ModelEntry] = {}
    for entry in entries.values():
        for alias in entry.settings.aliases:
            if not alias.endswith(_ANY):
                aliases.setdefault(alias, entry)
    return aliases | entries


def _beginnings(entries: dict[str, ModelEntry]) -> list[tuple[str, ModelEntry]]:
    """Aliases that stand for every name which begins like them, the longest first."""
    found: dict[str, ModelEntry] = {}
    for entry in entries.values():
        for alias in entry.settings.aliases:
            if alias.endswith(_ANY):
                found.setdefault(alias.removesuffix(_ANY), entry)
    return sorted(found.items(), key=lambda item: len(item[0]), reverse=True)


def _near(name: str, known: list[str]) -> list[str]:
    """The known names most like `name`, the best first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    lower = name.lower()
    near = difflib.get_close_matches(lower, by_lower, n=_NEAR, cutoff=0.6)
    # People leave out the organisation or the size: qwen3 for mlx-community/Qwen3-8B-4bit.
    if len(lower) >= _SHORTEST_PART:
        near += [candidate for candidate in by_lower if lower in candidate and candidate not in near]
    return [by_lower[candidate] for candidate in near[:_NEAR]]

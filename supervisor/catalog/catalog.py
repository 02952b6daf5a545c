"""The models on this machine, by the names under which requests ask for them."""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from shared.errors import PublicError
from shared.launch import Sampling, Shards
from shared.names import Names
from supervisor.catalog.hosts import HostsError, read_hosts
from supervisor.catalog.places import (
    Finder,
    Found,
    Place,
    SourceError,
    find_source,
    hub_cache,
    is_downloading,
    lm_studio_folders,
    unfinished,
)
from supervisor.catalog.scan import ModelFolder, Scanner
from supervisor.home import Home
from supervisor.settings import ModelSettings, Settings

_SHOWN_CHARACTERS: Final = 80
_NEAR: Final = 3
_LISTED: Final = 5
_SHORTEST_PART: Final = 3
_ANY: Final = "*"
_ALL: Final = "GET /v1/models, or mlx-supervisor list, shows all."


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
    place: Place = "own"
    """Where it was found."""
    revision: str | None = None
    """The commit, of one from the hub."""
    quantization: str | None = None
    """As people say it: `4-bit`, `mxfp4`, `bf16`."""
    capabilities: tuple[str, ...] = ()
    """What it can do as far as its files tell."""
    vision: bool = False
    """Whether it was made to see as well."""
    sampling: Sampling = Sampling()
    """What a request that does not say gets: as the settings have it, or else the model's own files."""
    draft: Path | None = None
    """The folder of the model that proposes what this one says."""
    also: tuple[str, ...] = ()
    """Ids under which its folder would be found if the configuration did not give it one."""
    created_s: float = 0.0
    """Seconds since 1970."""
    shards: Shards | None = None
    """The machines that compute it together; None is this one alone."""


class Catalog:
    """What is on disk, as of the last `refresh`. Look-ups read memory only."""

    def __init__(self, home: Home, settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
        self._home = home
        self._settings = settings
        self._environ = environ
        self._finder = Finder()
        self._scanner = Scanner()
        self._entries: dict[str, ModelEntry] = {}
        self._made: dict[str, tuple[Found, ModelSettings, ModelFolder, ModelEntry]] = {}
        self.names = Names()
        self.problems: tuple[str, ...] = ()
        """What is wrong with the places themselves, in sentences."""
        self.refresh()

    def refresh(self, settings: Settings | None = None) -> None:
        """Look at the disks again, by other `settings` if there are any. What did not change is not read
        again, and its entry stays the very same object."""
        settings = settings or self._settings
        problems: list[str] = []
        found = self._distinct(self._found(settings, problems))
        known = {model_id: model for model_id, (model, _) in found.items()}
        entries: dict[str, ModelEntry] = {}
        taken: dict[str, list[str]] = {}
        for model_id, chosen in settings.models.items():
            try:
                source = find_source(
                    model_id, chosen.source, known=known, base=self._home.path, environ=self._environ
                )
            except SourceError as error:
                nowhere = Found(model_id, "", "config")
                entries[model_id] = self._entry(nowhere, chosen, ModelFolder(problem=str(error)))
                continue
            # Whoever asks for it by the id it was found under gets the worker that there is.
            taken.setdefault(source.folder, [model_id])
            source = msgspec.structs.replace(source, id=model_id)
            entries[model_id] = self._entry(source, chosen, self._scanner.scan(source.folder))
        for model_id, (model, scanned) in found.items():
            if model_id in settings.models:
                continue
            if model.folder in taken:
                taken[model.folder].append(model_id)
            else:
                entries[model_id] = self._entry(model, settings.defaults, scanned)
        for first, *others in taken.values():
            if others:
                entries[first] = self._kept(msgspec.structs.replace(entries[first], also=tuple(others)))
        for entry in [entry for entry in entries.values() if entry.settings.hosts]:
            entries[entry.id] = self._kept(_with_hosts(entry, entry.settings.hosts))
        for entry in [entry for entry in entries.values() if entry.settings.draft is not None]:
            entries[entry.id] = self._kept(self._with_draft(entry, entries, known))
        self._finder.forget_unseen()
        self._settings = settings
        before = self._entries
        if len(entries) != len(before) or any(before.get(name) is not new for name, new in entries.items()):
            used = {str(entry.directory) for entry in entries.values()}
            self._scanner.forget_except(
                used | {str(entry.draft) for entry in entries.values() if entry.draft}
            )
            self._made = {model_id: made for model_id, made in self._made.items() if model_id in entries}
            self._entries = dict(sorted(entries.items()))
            self.names = Names(_exact(self._entries), _beginnings(self._entries))
        problems += _idle_names(settings, entries)
        fallback = self.names.exact.get(settings.server.fallback_model)
        if settings.server.fallback_model and fallback is None:
            problems.append(
                f"server.fallback_model: there is no model {settings.server.fallback_model!r}, so that names "
                "which nobody knows are refused"
            )
        if fallback != self.names.fallback:
            self.names = msgspec.structs.replace(self.names, fallback=fallback)
        self.problems = tuple(problems)

    def _found(self, settings: Settings, problems: list[str]) -> Iterator[Found]:
        """Everything that may be a model. Of two with one id the one from the earlier place has it, unless
        that one is broken and the other is not."""
        places = settings.catalog
        yield from self._finder.tree(self._home.models, "own")
        for name in places.folders:
            folder = self._home.path / Path(name).expanduser()
            if not folder.is_dir():
                problems.append(f"catalog.folders: there is no folder {name}")
            yield from self._finder.tree(folder, "folder")
        if places.lm_studio:
            for folder in lm_studio_folders(self._environ):
                yield from self._finder.tree(folder, "lmstudio")
        if places.hub:
            yield from self._finder.hub(hub_cache(self._environ))

    def _distinct(self, found: Iterator[Found]) -> dict[str, tuple[Found, ModelFolder]]:
        """Models by ids that differ, and what is in them: the second of one id is `ID@PLACE`.

        Other programs' folders hold all kinds of things: what is no model is left out there.
        """
        named: dict[str, tuple[Found, ModelFolder]] = {}
        alike: dict[str, list[tuple[Found, ModelFolder]]] = {}
        for model in found:
            if model.problem is not None:
                scanned = ModelFolder(problem=model.problem)
            else:
                scanned = self._scanner.scan(model.folder)
            if scanned.is_model or model.place in ("own", "folder") or _is_coming(model):
                if model.id in named:
                    alike.setdefault(model.id, [named[model.id]]).append((model, scanned))
                else:
                    named[model.id] = model, scanned
        for model_id, models in alike.items():
            # Sorting keeps the order of places among the whole ones, and among the broken ones.
            models.sort(key=lambda pair: pair[1].problem is not None)
            named[model_id], *others = models
            for model, scanned in others:
                again, number = f"{model_id}@{model.place}", 1
                while again in named:
                    number += 1
                    again = f"{model_id}@{model.place}{number}"
                named[again] = msgspec.structs.replace(model, id=again), scanned
        return named

    def _entry(self, source: Found, settings: ModelSettings, folder: ModelFolder) -> ModelEntry:
        """The entry of one model; the same object as before when nothing about it has changed."""
        made = self._made.get(source.id)
        if made is not None and made[1] is settings and made[2] is folder and made[0] == source:
            return made[3]
        entry = self._make(source, settings, folder)
        if entry.problem is None and settings.chat_template is None:
            self._made[source.id] = (source, settings, folder, entry)
        return entry

    def _make(self, source: Found, settings: ModelSettings, folder: ModelFolder) -> ModelEntry:
        context = folder.context
        if settings.context is not None:
            context = settings.context if context is None else min(context, settings.context)
        capabilities, problem = folder.capabilities, folder.problem
        if problem is not None and _is_coming(source):
            problem = unfinished(source.id.partition("@")[0])
        if settings.chat_template is not None:
            capabilities = capabilities or ("chat", "tools")
            if problem is None and not Path(settings.chat_template).expanduser().is_file():
                problem = "its chat_template is no file"
        return self._kept(
            ModelEntry(
                id=source.id,
                directory=Path(source.folder),
                settings=settings,
                architecture=folder.architecture,
                context=context,
                weights_bytes=folder.weights_bytes,
                problem=problem,
                identity=folder.identity,
                place=source.place,
                revision=source.revision,
                quantization=folder.quantization,
                capabilities=capabilities,
                vision=folder.vision,
                sampling=settings.sampling.over(folder.sampling),
                created_s=folder.changed_s,
            )
        )

    def adopt(self, fresh: "Catalog") -> None:
        """Be as `fresh` is, which was made with other settings."""
        vars(self).update(vars(fresh))

    def _with_draft(
        self, entry: ModelEntry, entries: Mapping[str, ModelEntry], known: Mapping[str, Found]
    ) -> ModelEntry:
        """With the folder of its draft, or with what is wrong with that."""
        name = entry.settings.draft
        assert name is not None
        try:
            if name in entries:
                folder, wrong = entries[name].directory, entries[name].problem
            else:
                source = find_source(
                    entry.id, name, known=known, base=self._home.path, environ=self._environ, key="draft"
                )
                folder, wrong = Path(source.folder), self._scanner.scan(source.folder).problem
        except SourceError as error:
            problem = f"its draft can't be used: {error}"
            return msgspec.structs.replace(entry, problem=entry.problem or problem)
        if wrong is None:
            return msgspec.structs.replace(entry, draft=folder)
        problem = f"its draft {name!r} can't be used: {wrong}"
        return msgspec.structs.replace(entry, draft=folder, problem=entry.problem or problem)

    def _kept(self, entry: ModelEntry) -> ModelEntry:
        before = self._entries.get(entry.id)
        return before if before == entry else entry

    def entries(self) -> list[ModelEntry]:
        """All models, sorted by id, broken ones among them."""
        return list(self._entries.values())

    def amiss(self) -> list[str]:
        """What whoever wrote the settings should know, in sentences: what they name and what is not there."""
        named = self._settings.models
        broken = [
            entry for entry in self._entries.values() if entry.id in named and entry.problem is not None
        ]
        return [*self.problems, *(f"{entry.id} can't be loaded: {entry.problem}" for entry in broken)]

    def resolve(self, name: str, *, fallback: bool = True) -> ModelEntry:
        """The model with this id or alias; with `fallback` an unknown name gets the fallback model, if there
        is one: that answers requests, but whoever unloads a model has misspelled it.

        Raises PublicError, 404 `model_not_found`, with the names that are most like it.
        """
        model_id = self.names.find(name) if fallback else self.names.meant(name)
        if model_id is None:
            raise PublicError(404, "model_not_found", self._unknown(name), param="model")
        return self._entries[model_id]

    def _unknown(self, name: str) -> str:
        shown = "".join(letter if letter.isprintable() else "�" for letter in name[:_SHOWN_CHARACTERS])
        if len(name) > _SHOWN_CHARACTERS:
            shown += "…"
        said = f"The model '{shown}' does not exist here."
        known = list(self.names.exact)
        if not known:
            return f"{said} There are no models yet; get one with: mlx-supervisor pull ORG/NAME"
        near = _near(name, known) if len(name) <= _SHOWN_CHARACTERS else []
        if near:
            return f"{said} Did you mean {' or '.join(near)}? {_ALL}"
        listed = ", ".join(list(self._entries)[:_LISTED])
        more = ", among others" if len(self._entries) > _LISTED else ""
        return f"{said} There are: {listed}{more}. {_ALL}"


def _is_coming(model: Found) -> bool:
    """Whether parts of it are on their way into the hub's cache."""
    head, snapshots, _ = model.folder.rpartition(f"{os.sep}snapshots{os.sep}")
    return model.place == "hub" and bool(snapshots) and is_downloading(head)


def _with_hosts(entry: ModelEntry, hosts: tuple[str, ...]) -> ModelEntry:
    try:
        return msgspec.structs.replace(entry, shards=read_hosts(hosts))
    except HostsError as error:
        return msgspec.structs.replace(entry, problem=entry.problem or str(error))


def _idle_names(settings: Settings, entries: Mapping[str, ModelEntry]) -> Iterator[str]:
    """Aliases that stand for nothing, in sentences: a model is called so."""
    for model_id, chosen in settings.models.items():
        for alias in chosen.aliases:
            if alias in entries and alias != model_id:
                yield f"models.{model_id}.aliases: {alias!r} is a model's own id, and means that model"


def _exact(entries: dict[str, ModelEntry]) -> dict[str, str]:
    """Every name that means just one model. An id beats an alias; of two equal aliases the first stands."""
    aliases: dict[str, str] = {}
    for entry in entries.values():
        for alias in (*entry.also, *entry.settings.aliases):
            if not alias.endswith(_ANY):
                aliases.setdefault(alias, entry.id)
    return aliases | {model_id: model_id for model_id in entries}


def _beginnings(entries: dict[str, ModelEntry]) -> tuple[tuple[str, str], ...]:
    """Aliases that stand for every name which begins like them, the longest first."""
    found: dict[str, str] = {}
    for entry in entries.values():
        for alias in entry.settings.aliases:
            if alias.endswith(_ANY):
                found.setdefault(alias.removesuffix(_ANY), entry.id)
    return tuple(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))


def _near(name: str, known: list[str]) -> list[str]:
    """The known names most like `name`, the best first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    lower = name.lower()
    near = difflib.get_close_matches(lower, by_lower, n=_NEAR, cutoff=0.6)
    # People leave out the organisation or the size: qwen3 for mlx-community/Qwen3-8B-4bit.
    if len(lower) >= _SHORTEST_PART:
        near += [candidate for candidate in by_lower if lower in candidate and candidate not in near]
    return [by_lower[candidate] for candidate in near[:_NEAR]]

"""Where models are on this machine's disks: our own folder, folders that the settings name, LM Studio's, and
the Hugging Face cache.

Names from outside are only ever compared with what is found on disk or configured; never joined to a path.
A folder that did not change since it was listed is not listed again.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from shared.importing import PARTIAL_PREFIX
from shared.pulling import PARTIAL_SUFFIX
from supervisor.catalog.starter import STARTER_ID, STARTER_PACKAGE

Place = Literal["own", "folder", "lmstudio", "hub", "config"]
"""Our own models folder, one of `catalog.folders`, LM Studio's, the Hugging Face cache, and folders that only
a model's `source` names."""

LM_STUDIO: Final = (".lmstudio/models", ".cache/lm-studio/models")
"""Below the home folder; the second is that of earlier versions."""

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_REPOSITORY: Final = "models--"
_SETTLED_NS: Final = 50_000_000
"""File systems tell time in ticks: a folder that changed so lately may change again without showing it."""


class SourceError(Exception):
    """Raised when a model's `source` leads nowhere; the message is a sentence without paths."""


class Found(msgspec.Struct, frozen=True):
    """A folder that may hold a model. `problem` says why there is none in it yet."""

    id: str
    folder: str
    place: Place
    revision: str | None = None
    """The commit, of one from the hub."""
    problem: str | None = None


class _Listing(msgspec.Struct, frozen=True):
    """What a folder holds, hidden files left out. `files` tells whether there are any."""

    folders: tuple[str, ...] = ()
    files: bool = False
    waits: bool = False
    """Nothing but imports under way."""


_NOTHING: Final = _Listing()


class Finder:
    """Looks through places, and remembers each folder's listing and what it made of it until that changes."""

    def __init__(self) -> None:
        self._listings: dict[str, tuple[int, _Listing]] = {}
        self._commits: dict[str, tuple[int, str | None]] = {}
        self._models: dict[tuple[str, Place], tuple[_Listing, tuple[Found, ...]]] = {}
        """Of a folder that is an ORG."""
        self._repositories: dict[str, tuple[_Listing, tuple[tuple[str, str], ...]]] = {}
        """Of the hub's cache: id and folder of each."""
        self._snapshots: dict[str, Found] = {}
        """By the folder of the repository."""
        self._seen: set[str] = set()

    def forget_unseen(self) -> None:
        """Drop what is remembered of folders that were not looked at since the last call."""
        seen, self._seen = self._seen, set()
        self._listings = {path: listing for path, listing in self._listings.items() if path in seen}
        self._commits = {path: commit for path, commit in self._commits.items() if path in seen}
        self._models = {key: models for key, models in self._models.items() if key[0] in seen}
        self._repositories = {path: known for path, known in self._repositories.items() if path in seen}

    def tree(self, root: Path, place: Place) -> Iterator[Found]:
        """Model folders as `NAME` or `ORG/NAME` below `root`, which itself may be one.

        A folder without files that holds folders is an ORG; every other one is a model, whole or broken.
        """
        top = str(root)
        listing = self._list(top)
        if place != "own" and listing.files and os.path.exists(os.path.join(top, "config.json")):
            yield Found(root.name, top, place)
            return
        for name in listing.folders:
            folder = f"{top}/{name}"
            inner = self._list(folder)
            if inner.folders and not inner.files:
                yield from self._inside(name, folder, inner, place)
            elif not inner.waits:
                yield Found(name, folder, place)

    def hub(self, cache: Path) -> Iterator[Found]:
        """Models in the Hugging Face cache, each at the revision that its `main` has here."""
        repositories = self._in_cache(str(cache))
        for hub_id, repository in repositories:
            commit = self.commit(repository)
            if commit is not None:
                found = self._snapshots.get(repository)
                if found is None or found.revision != commit:
                    found = Found(hub_id, f"{repository}/snapshots/{commit}", "hub", commit)
                    self._snapshots[repository] = found
                yield found
            elif is_downloading(repository):
                yield Found(hub_id, repository, "hub", None, unfinished(hub_id))
        if len(self._snapshots) > len(repositories):
            there = {repository for _, repository in repositories}
            self._snapshots = {path: found for path, found in self._snapshots.items() if path in there}

    def _inside(self, organisation: str, folder: str, listing: _Listing, place: Place) -> tuple[Found, ...]:
        """The models of an organisation's folder."""
        known = self._models.get((folder, place))
        if known is not None and known[0] is listing:
            return known[1]
        found = tuple(
            Found(f"{organisation}/{model}", f"{folder}/{model}", place) for model in listing.folders
        )
        self._models[folder, place] = listing, found
        return found

    def _in_cache(self, top: str) -> tuple[tuple[str, str], ...]:
        """Id and folder of each of the repositories in the hub's cache."""
        listing = self._list(top)
        known = self._repositories.get(top)
        if known is not None and known[0] is listing:
            return known[1]
        found = []
        for name in listing.folders:
            hub_id = name.removeprefix(_REPOSITORY).replace("--", "/", 1)
            if name.startswith(_REPOSITORY) and _HUB_ID.fullmatch(hub_id):
                found.append((hub_id, f"{top}/{name}"))
        self._repositories[top] = listing, tuple(found)
        return tuple(found)

    def _list(self, folder: str) -> _Listing:
        """The folder's listing; one that can't be read counts as empty."""
        try:
            changed_ns = os.stat(folder).st_mtime_ns
        except OSError:
            return _NOTHING
        self._seen.add(folder)
        known = self._listings.get(folder)
        if known is not None and known[0] == changed_ns:
            return known[1]
        found = _listing(folder)
        if time.time_ns() - changed_ns > _SETTLED_NS:
            self._listings[folder] = (changed_ns, found)
        return found

    def commit(self, repository: str) -> str | None:
        """The commit whose files the cache holds: that of `main`, or of the only other revision."""
        reference = f"{repository}/refs/main"
        try:
            changed_ns = os.stat(reference).st_mtime_ns
        except OSError:
            return _only_snapshot(self._list(os.path.join(repository, "snapshots")).folders)
        self._seen.add(reference)
        known = self._commits.get(reference)
        if known is not None and known[0] == changed_ns:
            return known[1]
        commit = _read_commit(reference)
        if time.time_ns() - changed_ns > _SETTLED_NS:
            self._commits[reference] = (changed_ns, commit)
        return commit


def _listing(folder: str) -> _Listing:
    folders, files, partial, others = [], False, False, False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".")
                partial = partial or entry.name.startswith(PARTIAL_PREFIX)
                others = others or not entry.name.startswith(PARTIAL_PREFIX)
                if hidden or not entry.name.isprintable():
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                else:
                    files = True
    except OSError:
        return _NOTHING
    return _Listing(tuple(sorted(folders)), files, partial and not others)


def _read_commit(reference: str) -> str | None:
    try:
        with open(reference, encoding="ascii") as file:
            commit = file.read(100).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _only_snapshot(names: tuple[str, ...]) -> str | None:
    """One that was asked for by its commit leaves no name in `refs`."""
    return names[0] if len(names) == 1 and _COMMIT.fullmatch(names[0]) else None


def is_downloading(repository: str) -> bool:
    """Whether files of a repository in the cache have come in part."""
    try:
        with os.scandir(os.path.join(repository, "blobs")) as entries:
            return any(entry.name.endswith(PARTIAL_SUFFIX) for entry in entries)
    except OSError:
        return False


def unfinished(hub_id: str) -> str:
    """The sentence for a download that was not finished."""
    return f"its download has not finished; go on with: mlx-supervisor pull {hub_id}"


def lm_studio_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where LM Studio keeps models."""
    home = environ.get("HOME")
    if home:
        for folder in LM_STUDIO:
            yield Path(home) / folder


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache's folder, by the variables that its own tools read."""
    if chosen := environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def hub_snapshot(cache: Path, hub_id: str, revision: str | None = None) -> Path | None:
    """The folder, called after the commit, of a cached model; None when it is not there.

    `revision` is a branch, a tag or a commit; None takes what the cache has.
    """
    if not _HUB_ID.fullmatch(hub_id) or (revision is not None and not _REVISION.fullmatch(revision)):
        return None
    repository = cache / f"{_REPOSITORY}{hub_id.replace('/', '--')}"
    if revision is None:
        commit = Finder().commit(str(repository))
    else:
        commit = _read_commit(str(repository / "refs" / revision))
        if commit is None and _COMMIT.fullmatch(revision):
            commit = revision
    if commit is None:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def find_source(
    model_id: str,
    source: str | None,
    *,
    known: Mapping[str, Found],
    base: Path,
    environ: Mapping[str, str] = os.environ,
    key: str = "source",
) -> Found:
    """The folder of a model that the configuration names.

    `known` are the models that were found, by their ids; `base` is what a relative folder is relative to.
    Without a `source` the model's id is looked up. `key` is what the source is called. Raises SourceError.
    """
    wanted = model_id if source is None else source
    if source is not None and source.startswith(("/", "~", "./", "../")):
        try:
            return Found(model_id, str(base / Path(source).expanduser()), "config")
        except RuntimeError:
            raise SourceError(f"the home folder that its {key} begins with is not known") from None
    if wanted in known:
        return known[wanted]
    hub_id, _, revision = wanted.partition("@")
    if _HUB_ID.fullmatch(hub_id):
        snapshot = hub_snapshot(hub_cache(environ), hub_id, revision or None)
        if snapshot is None:
            raise SourceError(
                f"{wanted} is not in the local Hugging Face cache; get it with: mlx-supervisor pull {wanted}"
            )
        return Found(model_id, str(snapshot), "hub", snapshot.name)
    if wanted == STARTER_ID:
        raise SourceError(
            f"it is not here yet; if {STARTER_PACKAGE} is installed, it comes when the supervisor starts"
        )
    if source is None:
        raise SourceError("no model of this id was imported; import one, or give it a `source`")
    raise SourceError(
        f"its {key} {wanted!r} is no model that was found and no hub id; a folder begins with /, ~ or ./"
    )

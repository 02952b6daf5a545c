"""Where models are on this machine's disks: our own folder, and the Hugging Face cache.

Names from outside are only ever compared with what is found on disk or configured; never joined to a path.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from shared.importing import PARTIAL_PREFIX

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


class SourceError(Exception):
    """Raised when a model's `source` leads nowhere; the message is a sentence without paths."""


def own_models(models: Path) -> Iterator[tuple[str, Path]]:
    """The model folders in our own folder, as (id, folder): `models/NAME`, or `models/ORG/NAME`.

    A folder without files that holds folders is an ORG; every other one is a model, whole or broken.
    """
    for folder in _folders(models):
        inner = _folders(folder)
        if inner and not _has_files(folder):
            for model in inner:
                yield f"{folder.name}/{model.name}", model
        elif not _is_waiting(folder):
            yield folder.name, folder


def _is_waiting(folder: Path) -> bool:
    """Whether it is the ORG of a first import that is under way."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return False
    return bool(names) and all(name.startswith(PARTIAL_PREFIX) for name in names)


def _folders(parent: Path) -> list[Path]:
    """Subfolders by name, without hidden ones and imports under way. Unreadable counts as empty."""
    try:
        return sorted(
            path
            for path in parent.iterdir()
            if path.is_dir() and not path.name.startswith(".") and path.name.isprintable()
        )
    except OSError:
        return []


def _has_files(folder: Path) -> bool:
    try:
        return any(not path.name.startswith(".") and not path.is_dir() for path in folder.iterdir())
    except OSError:
        return False


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache's folder, by the variables that its own tools read."""
    if chosen := environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def hub_snapshot(cache: Path, hub_id: str) -> Path | None:
    """The folder of the cached model's current revision; None when it is not there."""
    if not _HUB_ID.fullmatch(hub_id):
        return None
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not _COMMIT.fullmatch(commit):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def find_source(
    model_id: str,
    source: str | None,
    *,
    own: Mapping[str, Path],
    base: Path,
    environ: Mapping[str, str] = os.environ,
    key: str = "source",
) -> Path:
    """The folder of a model that the configuration names.

    `own` are the models in our own folder; `base` is what a relative folder is relative to. Without a
    `source` the model's id is looked up. `key` is what the source is called. Raises SourceError.
    """
    wanted = model_id if source is None else source
    if source is not None and source.startswith(("/", "~", "./", "../")):
        try:
            return base / Path(source).expanduser()
        except RuntimeError:
            raise SourceError(f"the home folder that its {key} begins with is not known") from None
    if wanted in own:
        return own[wanted]
    if _HUB_ID.fullmatch(wanted):
        snapshot = hub_snapshot(hub_cache(environ), wanted)
        if snapshot is None:
            raise SourceError(
                f"{wanted} is not in the local Hugging Face cache; get it with: hf download {wanted}"
            )
        return snapshot
    if source is None:
        raise SourceError("no model of this id was imported; import one, or give it a `source`")
    raise SourceError(
        f"its {key} {wanted!r} is no imported model and no hub id; a folder begins with /, ~ or ./"
    )

"""Whether a model folder is still what it was."""

from pathlib import Path
from typing import Final

_WEIGHTS: Final = (".safetensors", ".gguf")

States = dict[str, tuple[int, int, int]]
"""By path: inode, time of the last change in ns, bytes."""


def states_of(directory: Path, *beside: str | None, weights: bool) -> States | None:
    """The states of the folder's files, with or without `weights`, and of those `beside` it; None if that
    can't be told."""
    try:
        paths = [path for path in directory.iterdir() if weights or path.suffix not in _WEIGHTS]
        paths += [Path(path) for path in beside if path is not None]
        states = {str(path): path.stat() for path in paths}
    except OSError:
        return None
    return {path: (state.st_ino, state.st_mtime_ns, state.st_size) for path, state in states.items()}

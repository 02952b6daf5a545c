"""The first configuration: every setting with what it does, all of it commented out."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from supervisor.settings.keys import TABLES, Key, keys_of, written
from supervisor.settings.model import ModelSettings

_WIDTH: Final = 100
_HEAD: Final = """\
# Settings of mlx-supervisor. What is commented out has the value shown; remove the `#` to change it.
# `mlx-supervisor config check` reads this file and says what is wrong with it; `mlx-supervisor reload` has a
# running supervisor take a change over.
"""
_MODEL_HEAD: Final = """\
# A table for each model that shall differ, by its id (`mlx-supervisor list` shows them). It takes every key
# of [defaults] too, and these:
#
# [models."smollm2-135m"]
"""


def commented() -> str:
    """A `config.toml` that changes nothing and shows everything."""
    parts = [_HEAD]
    for name, struct in TABLES.items():
        keys = [key for key in keys_of(struct, (name,)) if not (name == "defaults" and key.one_model)]
        intro = "What every model has unless its own table says otherwise." if name == "defaults" else ""
        parts.append("\n".join([*_comment(intro), f"[{name}]", *_lines(keys, 1)]))
    own = [key for key in keys_of(ModelSettings, ("models", "ID")) if key.one_model]
    parts.append(_MODEL_HEAD + "\n".join(_lines(own, 2)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _lines(keys: Iterable[Key], depth: int) -> Iterator[str]:
    for key in keys:
        yield ""
        yield from _comment(f"{key.doc} ({key.allowed()})")
        name = ".".join(key.path[depth:])
        yield f"# {name} = {written(key) or _sample(key)}"


def _sample(key: Key) -> str:
    """A value for a key that has no default, so that its form is seen."""
    match key.kind:
        case "size":
            return '"8GiB"'
        case "duration":
            return '"30m"'
        case "text":
            return '"..."'
        case "whole number" | "number":
            return f"{int(key.low) if key.low is not None else 0}"
        case _:
            return "true"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)] if text else []

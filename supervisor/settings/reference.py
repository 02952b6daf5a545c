"""Writes deploy/config.md: `python -m supervisor.settings.reference > deploy/config.md`.

A test compares the file with what this module makes, so that it can't fall behind the code.
"""

import inspect
import sys
from collections.abc import Iterable
from typing import Final

import msgspec

from supervisor.settings.keys import TABLES, Key, keys_of, written
from supervisor.settings.model import ModelSettings

_HEAD: Final = """\
# Settings

<!-- Made from the code by `make reference`; a test compares the two. -->

The settings are in `config.toml` in the state folder (`~/.mlx-supervisor`, or `MLX_SUPERVISOR_HOME`, or
`--home`), or in the file that `--config` names. Without a file everything has its default. A key that is
not in this list, or a value that is not allowed, is refused at the start with its file and line.

A flag of `mlx-supervisor start` counts more than the environment, the environment more than the file, the
file more than the default. Keys with a variable can be set in the environment; an empty variable counts as
not set.

Sizes are written as people write them: `"512MB"`, `"8GiB"`, or a whole number of bytes. So are durations:
`"250ms"`, `"90s"`, `"30m"`, `"2h"`, `"7d"`, and `"never"` where the table allows it.
"""

EXAMPLE: Final = """\
[server]
port = 8080
allowed_hosts = ["mac.local"]
max_body = "16MiB"

[memory]
budget = "48GiB"

[defaults]
idle_unload = "1h"
sampling = { temperature = 0.7 }

[models."qwen3-8b"]
source = "mlx-community/Qwen3-8B-4bit"
aliases = ["gpt-4o-mini"]
preload = true
context = 32768
adapters = { sql = "~/adapters/sql" }
draft = "mlx-community/Qwen3-0.6B-4bit"
sampling = { top_p = 0.95 }

[models.notes]
source = "~/models/notes-1b"
idle_unload = "never"
"""


def reference() -> str:
    """The whole of deploy/config.md."""
    parts = [_HEAD]
    for name, struct in TABLES.items():
        if struct is not ModelSettings:
            parts.append(_section(f"[{name}]", _intro(struct), keys_of(struct, (name,)), variables=True))
    keys = keys_of(ModelSettings, ("defaults",))
    parts.append(
        _section(
            "[defaults]",
            "What every model has unless its own table says otherwise. `sampling` is what a request gets "
            "that does not say; where neither does, the model's own `generation_config.json` counts.",
            [key for key in keys if not key.one_model],
            variables=True,
        )
    )
    parts.append(
        _section(
            '[models."ID"]',
            "One model, by its id. It also takes every key of `[defaults]`, and inherits those it does "
            "not say, those of `sampling` one by one. These are for one model only:",
            [key for key in keys if key.one_model],
            variables=False,
        )
    )
    parts.append(f"## Example\n\n```toml\n{EXAMPLE}```\n")
    return "\n".join(parts)


def _intro(struct: type[msgspec.Struct]) -> str:
    return inspect.cleandoc(struct.__doc__ or "").partition(":")[0] + "."


def _section(title: str, intro: str, keys: Iterable[Key], *, variables: bool) -> str:
    head = "| key | what it does | allowed | default |"
    rule = "| --- | --- | --- | --- |"
    if variables:
        head, rule = f"{head} variable |", f"{rule} --- |"
    lines = [f"## `{title}`", "", intro, "", head, rule]
    for key in keys:
        name = ".".join(key.path[1:])
        default = f"`{written(key)}`" if written(key) else ""
        line = f"| `{name}` | {key.doc} | {key.allowed()} | {default or 'none'} |"
        if variables:
            line += f" `{key.variable}` |" if key.variable else " |"
        lines.append(line)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(reference())

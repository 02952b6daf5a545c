"""Where this very program is: the command that starts it again, from anywhere and after a reboot."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NAME: Final = "mlx-supervisor"


class ProgramError(Exception):
    """Raised when this program has no place that lasts; the message says what to do."""


def program(
    argv0: str = sys.argv[0],
    *,
    executable: str = sys.executable,
    prefix: str = sys.prefix,
    folder: str | None = None,
    installed: bool | None = None,
) -> tuple[str, ...]:
    """The command, in absolute paths, that runs what runs now, however it was started.

    The console script is named as it was called: a link in a `bin` folder goes on leading to the
    program after an upgrade, what it leads to today may be gone by then. Without a script it is the
    interpreter with `-m supervisor`. `folder` is what a relative `argv0` is relative to.

    Raises ProgramError when the program would not be found from another folder, or not for long.
    """
    script = Path(os.path.abspath(os.path.join(folder or os.getcwd(), argv0)))
    if script.name != NAME:
        script = Path(prefix) / "bin" / NAME
    if script.is_file() and os.access(script, os.X_OK):
        command: tuple[str, ...] = (str(script),)
    elif _is_installed() if installed is None else installed:
        command = (os.path.abspath(executable), "-m", "supervisor")
    else:
        raise ProgramError(
            f"{NAME} runs from a folder of source code that is not installed, so a service would not "
            "find it; run `make setup` there, or install it with `uv tool install`"
        )
    _refuse_passing(command, prefix)
    return command


def is_there(command: Sequence[str]) -> bool:
    """Whether the program that `command` names can still be run."""
    return bool(command) and os.access(command[0], os.X_OK) and Path(command[0]).is_file()


def _is_installed() -> bool:
    import importlib.metadata  # takes longer than all else here, and is seldom asked

    try:
        importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _refuse_passing(command: Sequence[str], prefix: str) -> None:
    """Raises ProgramError for an environment that a cache's owner may throw away, as `uvx` makes it."""
    for folder in Path(os.path.realpath(prefix)).parents:
        # The environment's own folder is not asked: tools put the tag there as well, against backups.
        if (folder / "CACHEDIR.TAG").is_file():
            raise ProgramError(
                f"{command[0]} runs from the cache in {folder}, from where it may vanish at any time; "
                f"install it to stay, with `uv tool install {NAME}`, and try again"
            )

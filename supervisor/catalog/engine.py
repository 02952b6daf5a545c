"""Which architectures the installed mlx-lm can run, told from the names of its modules.

Nothing of it is imported: that would bring in mlx. A module is named after its `model_type`.
"""

import ast
import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

from shared.encoders import ENCODERS

_PACKAGE: Final = "mlx_lm"
_OTHER_NAMES: Final = re.compile(r"^MODEL_REMAPPING\s*=\s*(\{.*?^\})", re.MULTILINE | re.DOTALL)


def runs(architecture: str) -> bool:
    """Whether there is code for it. Where mlx-lm is not installed nobody can tell, so it is not denied."""
    known = _architectures()
    return not known or architecture in known or architecture in ENCODERS


@cache
def _architectures() -> frozenset[str]:
    # Finding a top-level package executes nothing.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    names: set[str] = set()
    for location in spec.submodule_search_locations:
        folder = Path(location)
        try:
            modules = os.listdir(folder / "models")
            names.update(name.removesuffix(".py") for name in modules if name.endswith(".py"))
            names.update(_other_names((folder / "utils.py").read_text("utf-8")))
        except OSError:
            continue
    return frozenset(names)


def _other_names(source: str) -> set[str]:
    """The types that mlx-lm has under another name: the keys of a table in its source."""
    table = _OTHER_NAMES.search(source)
    if table is None:
        return set()
    try:
        names = ast.literal_eval(table[1])
    except (ValueError, SyntaxError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, dict) else set()

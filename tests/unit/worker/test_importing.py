"""What transformers finds in its own modules is the same, in less time."""

import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers.utils import import_utils

from worker.model.importing import shortened

MODELS = Path(transformers.__file__).parent / "models"


def exports(content: str) -> list[str]:
    """What transformers itself makes of a module's text."""
    found: list[str] = import_utils.fetch__all__.__wrapped__(content)
    return found


def test_it_is_in_place() -> None:
    """`prepare_backend` stood before the first import: a version that names things otherwise fails here."""
    assert import_utils.fetch__all__.__wrapped__.__module__ == import_utils.__name__
    remembered = import_utils.create_import_structure_from_path.cache_info()
    assert remembered.maxsize is None and remembered.currsize > 400


@pytest.mark.parametrize(
    "content",
    [
        "",
        "import os\n",
        '__all__ = ["A", "B"]',
        '__all__ = ["A"]\nx = 1\n',
        'x = 1\n__all__ = ["A"]\ny = 2\n__all__ = [\n    "B",\n    "C",\n]\n',
        '# of __all__\nif x:\n    __all__ = ["A"]\n',
        'x = 1\r\n__all__ = ["A"]\r\n',
        'x = 1\n__all__ = ["A"]\x0c__all__ = ["B"]\n',
        'x = 1\x0c__all__ = ["A"]\n',
    ],
)
def test_the_last_list_is_found_wherever_it_is(content: str) -> None:
    assert shortened(exports)(content) == exports(content)


@pytest.mark.slow
def test_every_module_of_transformers_exports_the_same() -> None:
    modules = [path.read_text(encoding="utf-8") for path in MODELS.rglob("*.py")]
    assert len(modules) > 1000
    for content in modules:
        assert import_utils.fetch__all__(content) == exports(content)


@pytest.mark.slow
def test_transformers_knows_the_same_names_as_without() -> None:
    names = (
        "import transformers; print(sorted(set(dir(transformers))), sorted(transformers._class_to_module))"
    )
    prepare = "from worker.model.backend import prepare_backend; prepare_backend(); "
    shown = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        for code in (names, prepare + names)
    ]
    assert len(shown[0]) > 100_000
    assert shown[0] == shown[1]


def test_mlx_lm_takes_no_descriptors_away() -> None:
    """Its import fails where fewer are allowed than it wants, and takes away the rest where more are."""
    program = """
import resource, sys
from worker.model.importing import prepare_imports
FILES = resource.RLIMIT_NOFILE
# The most can only be made less.
for allowed, then in (
    ((4000, 4500), (4000, 4500)),
    ((300, 3000), (2048, 3000)),
    ((300, 1000), (1000, 1000)),
):
    sys.modules.pop("mlx_lm.utils", None)
    prepare_imports()
    resource.setrlimit(FILES, allowed)
    import mlx_lm.utils
    assert resource.getrlimit(FILES) == then, resource.getrlimit(FILES)
    less = (200, then[1] - 100)
    resource.setrlimit(FILES, less)
    assert resource.getrlimit(FILES) == less, "only while it is imported"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

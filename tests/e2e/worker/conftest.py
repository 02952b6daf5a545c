"""The worker's tests run on the backend as the worker sets it up."""

from pathlib import Path

import pytest

from tests.fixtures.starter import starter_model
from tests.fixtures.thinker import write_thinker
from worker.model.backend import prepare_backend

prepare_backend()


@pytest.fixture(scope="session")
def starter() -> Path:
    """The folder of the real starter model."""
    return starter_model()


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """A model that only says letters, so it never ends its thinking by itself."""
    return write_thinker(tmp_path / "thinker")

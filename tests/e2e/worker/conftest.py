"""The worker's tests run on the backend as the worker sets it up."""

from pathlib import Path

import pytest

from tests.fixtures.starter import starter_model
from worker.model.backend import prepare_backend

prepare_backend()


@pytest.fixture(scope="session")
def starter() -> Path:
    """The folder of the real starter model."""
    return starter_model()

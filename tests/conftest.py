"""Fixtures for every test."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio (uvloop where it serves); no other backend is tested."""
    return "asyncio"

"""Fixtures for every test."""

import os
import signal

import hypothesis
import pytest

# What the machine happens to have is no part of a test. Read by our own processes as well.
os.environ["HF_HUB_CACHE"] = os.devnull
os.environ["MLX_SUPERVISOR_CATALOG_LM_STUDIO"] = "false"

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio (uvloop where it serves); no other backend is tested."""
    return "asyncio"

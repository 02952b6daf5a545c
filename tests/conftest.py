"""Fixtures for every test."""

import contextlib
import gc
import os
import signal
import sys

import hypothesis
import pytest

from worker.model.importing import prepare_imports

# Before any test imports it.
prepare_imports()

# What is imported stays: until all is there, looking for garbage in it takes a fifth of the time.
gc.disable()

# What the machine happens to have is no part of a test. Read by our own processes as well.
os.environ["HF_HUB_CACHE"] = os.devnull
os.environ["MLX_SUPERVISOR_CATALOG_LM_STUDIO"] = "false"

# A second core is another test's: BLAS would spend it waiting for work of a few microseconds.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Who is woken waits until who woke it has had its turn: an engine spent a quarter of its time on changes
# between its threads. What tests start inherits it.
if sys.platform == "linux":
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

SLOW_S = 300
"""What a slow test may take where it names no time of its own."""

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests load real models and walk far: what takes 20 s here takes minutes on a busy machine."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio (uvloop where it serves); no other backend is tested."""
    return "asyncio"

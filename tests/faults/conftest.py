"""Pools in the tests' own process wait as briefly as those of the fake supervisor; for the kernel longer."""

import pytest

from supervisor.workers import shutdown
from tests.fixtures import waits

UNKILLABLE_S = 15.0
"""After how long a pool ends without a process that does not end: here that is a slow machine's fault."""


@pytest.fixture(autouse=True)
def _fitting_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "_UNKILLABLE_S", UNKILLABLE_S)
    for module, name in waits.WAITS:
        monkeypatch.setattr(module, name, waits.SHORT_S)

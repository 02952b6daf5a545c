"""Pools in the tests' own process wait as briefly as those of the fake supervisor."""

import pytest

from tests.fixtures import waits


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in waits.WAITS:
        monkeypatch.setattr(module, name, waits.SHORT_S)

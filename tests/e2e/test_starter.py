"""The starter model comes by itself where it is wanted."""

from pathlib import Path

import pytest

from supervisor.catalog.places import SourceError, find_source
from tests.fixtures.harness import Service


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_fresh_home_whose_settings_name_the_starter_gets_it(tmp_path: Path) -> None:
    """It was looked for, not found and never imported: every request got a 502."""
    config = "[models.smollm2-135m]\ncontext = 2048\n"
    with Service(tmp_path / "home", config=config, arguments=("--no-spare",)) as service:
        models = {model["id"] for model in service.client.get("/v1/models").json()["data"]}
        assert "smollm2-135m" in models
        answer = service.chat("smollm2-135m", max_tokens=2)
        assert answer.status_code == 200, answer.text


def test_a_starter_that_is_not_here_says_when_it_comes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="it comes when the supervisor starts"):
        find_source("smollm2-135m", None, known={}, base=tmp_path, environ={})

"""A supervisor with fake workers, and the official SDK as its client."""

from collections.abc import Iterator

import openai
import pytest

from tests.fixtures.fake_shapes import Load, write_load
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config, write_fake_model

WINDOW = 200
"""Words that a fake model reads at most."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("responses")
    models = {name: write_fake_model(base / name) for name in ("a", "b")}
    write_load(models["a"], Load(context_window=WINDOW))
    write_load(models["b"], Load(context_window=WINDOW, summary_s=1.2))
    config = f'[server]\nping = "1s"\n[defaults]\ncontext = {WINDOW}\n' + models_config(**models)
    with Service(base / "home", fake=True, config=config) as service:
        yield service


@pytest.fixture(scope="module")
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        yield client

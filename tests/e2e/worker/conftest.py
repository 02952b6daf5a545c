"""The worker's tests run on the backend as the worker sets it up."""

import json
import shutil
from pathlib import Path

import pytest

from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import CHAT_TEMPLATE, Tiny, tiny_model
from worker.model.backend import prepare_backend

prepare_backend()

# As templates of models that think do it: open a block, or say at once that there is none.
OPENS = (
    CHAT_TEMPLATE.replace(
        "message['content']",
        "('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')"
        " + message['content']",
    )
    + "{% if add_generation_prompt %}{% if enable_thinking %}{{ '<think>\n' }}"
    "{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def starter() -> Path:
    """The folder of the real starter model."""
    return starter_model()


@pytest.fixture
def thinker(tmp_path: Path) -> Path:
    """A model that only says letters, so it never ends its thinking by itself."""
    folder = tmp_path / "thinker"
    shutil.copytree(tiny_model(Tiny("qwen3", thinking=True)), folder)
    configuration = folder / "tokenizer_config.json"
    configuration.write_text(json.dumps({**json.loads(configuration.read_text()), "chat_template": OPENS}))
    return folder

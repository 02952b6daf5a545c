"""A conversation outlives its model's worker: another model took its place, and it came back."""

import stat
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.tiny import Tiny, tiny_model

pytestmark = pytest.mark.slow

MEMORY = '[defaults]\nexclusive = true\nhold = "0s"\n'


def answer(service: Service, model: str, messages: list[dict[str, str]]) -> Any:
    response = service.chat(model, messages=messages, max_tokens=16, temperature=0)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_swap_to_another_model_and_back_finds_the_conversation_warm(tmp_path: Path) -> None:
    config = MEMORY + models_config(a=tiny_model(), b=tiny_model(Tiny(architecture="qwen3")))
    with Service(tmp_path / "home", config=config) as service:
        messages = [
            {"role": "system", "content": "Answer as a pirate would. " * 6},
            {"role": "user", "content": "Where is the treasure?"},
        ]
        first = answer(service, "a", messages)
        messages.append(first["choices"][0]["message"])
        messages.append({"role": "user", "content": "And the ship?"})
        answer(service, "b", messages[:2])
        assert service.worker("a") is None
        second = answer(service, "a", messages)
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= first["usage"]["total_tokens"] - 1
        folder = tmp_path / "home" / "kv"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = list(folder.glob("*/*.kv"))
        assert files and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)

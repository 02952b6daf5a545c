"""Decisions, embeddings and adapters through the supervisor, with the official SDK."""

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.fixtures.adapters import write_adapter
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.tiny import Tiny, tiny_model, write_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    base = tmp_path_factory.mktemp("sdk")
    vectors = write_tiny(base / "vectors", Tiny(seed=5))
    (vectors / "modules.json").write_text("[]")
    adapter = write_adapter(base / "sql")
    config = models_config(tiny=tiny_model(), vectors=vectors)
    config += f"\n[models.tiny.adapters]\nsql = {json.dumps(str(adapter))}\n"
    with (
        Service(base / "home", config=config) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=240) as client,
    ):
        yield client


def test_decisions(sdk: openai.OpenAI) -> None:
    decision = sdk.decisions.create(
        model="tiny",
        input="It is wet outside.",
        questions=[
            {"type": "predicate", "instructions": "It rains."},
            {"type": "choice", "instructions": "Colour?", "choices": [{"value": "a"}, {"value": True}]},
        ],
    )
    predicate, choice = decision.answers
    assert predicate.type == "predicate"
    assert 0 <= predicate.probability <= 1
    assert choice.type == "choice"
    assert [entry.value for entry in choice.probabilities] == ["a", True]
    assert decision.usage.output_tokens == 0


def test_embeddings(sdk: openai.OpenAI) -> None:
    # The SDK asks for base64 by itself.
    found = sdk.embeddings.create(model="vectors", input=["Hello", "Other"], dimensions=16)
    assert [len(entry.embedding) for entry in found.data] == [16, 16]
    assert math.hypot(*found.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert found.usage.prompt_tokens == 10
    with pytest.raises(openai.APIStatusError) as caught:
        sdk.embeddings.create(model="tiny", input="Hello")
    assert caught.value.status_code == 501


def test_an_adapter_of_the_settings(sdk: openai.OpenAI) -> None:
    def text(**extra: str) -> str:
        messages: Any = [{"role": "user", "content": "Hello"}]
        answer = sdk.chat.completions.create(
            model="tiny", messages=messages, temperature=0, max_tokens=16, extra_body=extra
        )
        return answer.choices[0].message.content or ""

    assert text(adapter="sql") != text() == text(adapter="none")
    with pytest.raises(openai.NotFoundError):
        text(adapter="other")

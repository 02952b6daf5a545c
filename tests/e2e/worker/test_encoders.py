"""`/v1/embeddings` on a real encoder, and what it says to all that encoders can't do."""

import base64
import json
import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_config, load_model, load_tokenizer

from shared.launch import Options
from shared.status import FailureKind, Ready
from tests.e2e.worker.serving import Json, Worker, serving
from tests.e2e.worker.test_embeddings import close, embed, vectors
from tests.fixtures.minilm import minilm_copy, minilm_model
from worker.model.encoders import encoder_classes
from worker.model.failures import LoadError
from worker.model.loading import load

SIZE = 384


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop for all tests here, for they share one worker."""
    return "asyncio"


@pytest.fixture(scope="module")
async def worker() -> AsyncIterator[Worker]:
    async with serving(directory=minilm_model()) as worker:
        yield worker


@pytest.fixture(scope="module")
def states() -> Any:
    """The states of a text, from one forward pass of one row without a mask's help."""
    folder = minilm_model()
    network: Any = load_model(folder, get_model_classes=encoder_classes(load_config(folder)))[0]
    network.set_dtype(mx.float32)
    tokenizer: Any = load_tokenizer(folder)

    def compute(text: str) -> mx.array:
        tokens = mx.array([tokenizer.encode(text)])
        found: mx.array = network(tokens, mx.ones(tokens.shape))[0]
        return found

    return compute


def unit(vector: mx.array) -> list[float]:
    found: Any = (vector / mx.linalg.norm(vector)).tolist()
    return list(found)


async def test_texts_of_like_meaning_have_like_vectors(worker: Worker) -> None:
    cat, kitten, stock = vectors(await embed(worker, ["cat", "kitten", "The stock market fell."]))
    assert len(cat) == SIZE
    assert np.dot(cat, kitten) == pytest.approx(0.79, abs=0.02)
    assert np.dot(cat, stock) < 0.2


@pytest.mark.slow
async def test_padding_changes_nothing_and_vectors_are_means(worker: Worker, states: Any) -> None:
    texts = ["Hello", "A longer text than the first one is", "Hi there", "a b c " * 40]
    for text, vector in zip(texts, vectors(await embed(worker, texts)), strict=True):
        assert vector == close(unit(states(text).mean(axis=0)))
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)


async def test_tokens_are_counted_with_those_around_the_text(worker: Worker) -> None:
    body = await embed(worker, ["Hello", "Hello there"])
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    given = vectors(await embed(worker, [101, 7592, 102]))[0]
    assert given == close(vectors(body)[0])
    assert vectors(await embed(worker, [[101, 7592, 102]]))[0] == close(given)


async def test_formats_and_fewer_dimensions(worker: Worker) -> None:
    whole = vectors(await embed(worker, "Hello"))[0]
    packed = (await embed(worker, "Hello", encoding_format="base64"))["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == close(whole)
    short = vectors(await embed(worker, "Hello", dimensions=8))[0]
    assert short == close([number / math.hypot(*whole[:8]) for number in whole[:8]])


@pytest.mark.slow
async def test_long_texts_are_refused_or_cut_before_their_last_token(worker: Worker) -> None:
    refused = await embed(worker, ["Hi", "cat " * 600], 400)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert refused["error"]["param"] == "input[1]"
    assert "602" in refused["error"]["message"] and "512" in refused["error"]["message"]
    cut = await embed(worker, "cat " * 600, truncate=True)
    assert cut["usage"]["prompt_tokens"] == 512
    assert vectors(cut)[0] == close(vectors(await embed(worker, "cat " * 510))[0])


async def test_many_texts_are_answered_in_their_order(worker: Worker) -> None:
    texts = [f"text {number} " * (number % 7 + 1) for number in range(24)]
    found = vectors(await embed(worker, texts))
    assert found[17] == close(vectors(await embed(worker, texts[17]))[0])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi", "echo": True, "logprobs": 1, "max_tokens": 0}),
        (
            "/v1/decisions",
            {"input": "Hi", "questions": [{"type": "predicate", "instructions": "It is a text."}]},
        ),
        ("/v1/systemone", {"state": "Hi", "questions": {"a": {"type": "noul", "instructions": "Is it?"}}}),
    ],
)
async def test_all_else_is_refused_in_its_own_shape(worker: Worker, path: str, body: Json) -> None:
    response = await worker.client.post(path, json=body)
    assert response.status_code == 501, response.text
    error = response.json()["error"]
    assert error["code"] == "unsupported"
    assert "embedding model" in error["message"]


async def test_it_says_what_it_can_and_goes_on_working(worker: Worker) -> None:
    ready = worker.said[-1]
    assert isinstance(ready, Ready)
    assert (ready.capabilities, ready.context_window) == (("embeddings",), 512)
    assert ready.memory.weights_bytes > 80 * 2**20
    health = await worker.health()
    assert health["state"] == "ready" and health["in_flight"] == 0
    adapters = {"op": "mount", "name": "a", "path": str(minilm_model())}
    refused = await worker.client.post("/admin/adapters", json=adapters)
    assert refused.status_code == 400, refused.text
    assert (await worker.client.post("/admin/memory/trim", json={})).status_code == 200


async def test_the_folder_says_how_states_become_vectors(tmp_path: Path, states: Any) -> None:
    folder = minilm_copy(tmp_path / "first")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    async with serving(directory=folder) as worker:
        whole = vectors(await embed(worker, "Hello"))[0]
        short = vectors(await embed(worker, "Hello", dimensions=8))[0]
    first = states("Hello")[0].tolist()
    assert whole == pytest.approx(first, abs=1e-4)
    assert short == pytest.approx(first[:8], abs=1e-4)


def refusal(folder: Path) -> LoadError:
    with pytest.raises(LoadError) as caught:
        load(folder, Options(), lambda progress: None)
    assert caught.value.kind is FailureKind.UNSUPPORTED
    return caught.value


def test_without_the_extra_the_load_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlx_embeddings"]:
        monkeypatch.delitem(sys.modules, name)
    folder = minilm_model()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert str(refusal(folder)) == (
        "encoder models such as this one (bert) need the package mlx-embeddings: install "
        "mlx-supervisor[embeddings], or mlx-embeddings alone with --no-deps"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "distilbert"}, "encoder models of type distilbert are not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification"),
        ({"hidden_size": None}, "how long the vectors are"),
    ],
)
def test_what_can_not_be_computed_is_refused(tmp_path: Path, changes: Json, reason: str) -> None:
    folder = minilm_copy(tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    assert reason in str(refusal(folder))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pooling by max_tokens"),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]', "(Dense)"),
    ],
)
def test_vectors_made_in_another_way_are_refused(
    tmp_path: Path, file: str, content: str, reason: str
) -> None:
    folder = minilm_copy(tmp_path / "other")
    (folder / file).write_text(content)
    assert reason in str(refusal(folder))

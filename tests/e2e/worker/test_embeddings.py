"""`/v1/embeddings` as a client sees it, on a tiny model that says it is one for embeddings."""

import asyncio
import base64
import json
import math
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from tests.e2e.worker.serving import ENDLESS, Json, Worker, content, serving
from tests.fixtures.tiny import Tiny, tiny_model, write_tiny

SIZE = 64
PROMPTS = {"query": "Instruct: Find it\nQuery: ", "document": ""}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    model = write_tiny(tmp_path / "vectors", Tiny(context=512))
    (model / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return model


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[Worker]:
    async with serving(directory=folder) as worker:
        yield worker


async def embed(worker: Worker, given: Any, status: int = 200, **fields: Any) -> Json:
    response = await worker.client.post("/v1/embeddings", json={"input": given, **fields})
    assert response.status_code == status, response.text
    body: Json = response.json()
    return body


def vectors(body: Json) -> list[list[float]]:
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    return [entry["embedding"] for entry in body["data"]]


def expected(folder: Path, tokens: list[int]) -> list[float]:
    """The last hidden state, normalised, from one forward pass."""
    network: Any = load_model(folder)[0]
    state = network.model(mx.array([tokens]))[0, -1]
    found: list[float] = (state / mx.linalg.norm(state)).tolist()
    return found


def close(vector: Sequence[float]) -> Any:
    return pytest.approx(vector, abs=1e-5)


async def test_vectors_are_the_last_state_of_each_text(worker: Worker, folder: Path) -> None:
    texts = ["Hello", "A much longer text than the first one", "Hi", "x" * 300]
    body = await embed(worker, texts)
    assert body["object"] == "list"
    for text, vector in zip(texts, vectors(body), strict=True):
        assert vector == close(expected(folder, list(text.encode())))
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    count = sum(map(len, texts))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}


async def test_all_shapes_of_input_are_the_same_text(worker: Worker) -> None:
    tokens = list(b"Hello")
    alone = vectors(await embed(worker, "Hello"))
    assert vectors(await embed(worker, ["Hello"]))[0] == close(alone[0])
    assert vectors(await embed(worker, tokens))[0] == close(alone[0])
    for vector in vectors(await embed(worker, [tokens, tokens])):
        assert vector == close(alone[0])
    assert len(vectors(await embed(worker, ["Hello", list(b"Hi")]))) == 2


async def test_base64_has_the_same_numbers(worker: Worker) -> None:
    plain = vectors(await embed(worker, "Hello"))[0]
    packed = (await embed(worker, "Hello", encoding_format="base64"))["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == close(plain)


async def test_fewer_dimensions_are_normalised_again(worker: Worker) -> None:
    whole = vectors(await embed(worker, "Hello"))[0]
    short = vectors(await embed(worker, "Hello", dimensions=8))[0]
    length = math.hypot(*whole[:8])
    assert short == close([number / length for number in whole[:8]])


async def test_queries_get_their_prompt(worker: Worker) -> None:
    written = await embed(worker, PROMPTS["query"] + "cats")
    asked = await embed(worker, "cats", input_type="query")
    assert vectors(asked)[0] == close(vectors(written)[0])
    assert asked["usage"] == written["usage"]
    plain = vectors(await embed(worker, "cats"))[0]
    assert vectors(await embed(worker, "cats", input_type="document"))[0] == close(plain)
    own = vectors(await embed(worker, "cats", instruction="Tell"))[0]
    assert own == close(vectors(await embed(worker, "Instruct: Tell\nQuery: cats"))[0])


async def test_long_texts_are_refused_or_cut(worker: Worker) -> None:
    refused = await embed(worker, ["Hi", "x" * 600], 400)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert refused["error"]["param"] == "input[1]"
    assert "600" in refused["error"]["message"]
    assert "512" in refused["error"]["message"]
    cut = await embed(worker, "x" * 600, truncate=True)
    assert cut["usage"]["prompt_tokens"] == 512
    whole = close(vectors(cut)[0])
    assert vectors(await embed(worker, "x" * 512))[0] == whole
    assert vectors(await embed(worker, "x" * 600, truncate_prompt_tokens=-1))[0] == whole
    short = vectors(await embed(worker, "Hello", truncate_prompt_tokens=2))[0]
    assert short == close(vectors(await embed(worker, "He"))[0])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [[1, "a"]]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [999]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions"),
        ({"input": "a", "encoding_format": "binary"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": [1, 2], "instruction": "Find"}, "instruction"),
        ({}, "input"),
    ],
)
async def test_what_is_wrong_is_named(worker: Worker, fields: Json, param: str) -> None:
    response = await worker.client.post("/v1/embeddings", json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


async def test_other_models_refuse() -> None:
    async with serving() as worker:
        refused = await embed(worker, "Hello", 501)
    assert refused["error"]["code"] == "unsupported"


async def test_rows_keep_running_and_many_texts_are_answered(worker: Worker) -> None:
    texts = [f"text {number} " * (number % 20 + 1) for number in range(100)]
    async with worker.stream(max_tokens=ENDLESS) as stream:
        await anext(stream)
        embedding = asyncio.create_task(embed(worker, texts))
        during = ""
        while not embedding.done():
            during += content([await anext(stream)])
        assert len(during) >= 5
    found = vectors(embedding.result())
    assert found[7] == close(vectors(await embed(worker, texts[7]))[0])


async def test_the_mean_of_all_states_if_the_folder_says_so(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    network: Any = load_model(folder)[0]
    async with serving(directory=folder) as worker:
        found = vectors(await embed(worker, ["Hello", "A longer text"]))
    states = network.model(mx.array([list(b"Hello")]))[0].sum(axis=0)
    assert found[0] == close((states / mx.linalg.norm(states)).tolist())


async def test_a_body_without_its_head_is_loaded(tmp_path: Path) -> None:
    """Embedding models are published without a head, and with the names of the body alone."""
    folder = tmp_path / "body"
    shutil.copytree(tiny_model(Tiny(architecture="qwen3")), folder)
    weights = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    whole: Any = load_model(folder)[0]
    state = whole.model(mx.array([list(b"Hello")]))[0, -1]
    body = {
        name.removeprefix("model."): array for name, array in weights.items() if name.startswith("model.")
    }
    mx.save_safetensors(str(folder / "model.safetensors"), body, metadata={"format": "mlx"})
    (folder / "modules.json").write_text("[]")
    async with serving(directory=folder) as worker:
        found = vectors(await embed(worker, "Hello"))[0]
    assert found == close((state / mx.linalg.norm(state)).tolist())

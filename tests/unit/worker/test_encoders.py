"""The other encoders: random tiny ones, padded and not, whole models and bodies."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_config, load_model

from worker.engine.embedder import EncoderEmbedder
from worker.model.description import context_window
from worker.model.embedding import Embedding
from worker.model.encoders import body_weights, encoder_classes

COMMON = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**COMMON, "vocab_size": 50, "max_position_embeddings": 200},
    "xlm-roberta": {**COMMON, "vocab_size": 50, "max_position_embeddings": 202, "pad_token_id": 1},
    "roberta": {**COMMON, "vocab_size": 50, "max_position_embeddings": 202, "pad_token_id": 1},
    "modernbert": {**COMMON, "vocab_size": 50, "max_position_embeddings": 400, "local_attention": 16},
}


def write_encoder(folder: Path, kind: str, *, prefix: str, dtype: Any) -> Path:
    """A random one with the names of a whole model, with a head of another purpose."""
    folder.mkdir()
    config = {"model_type": kind, "architectures": ["AnyModel"], **CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    classes, arguments = encoder_classes(config)(config)
    mx.random.seed(3)
    network = classes(arguments.from_dict(config))
    network.set_dtype(dtype)
    weights = {prefix + name: array for name, array in tree_flatten(network.parameters())}
    weights = {name: array for name, array in weights.items() if "pooler" not in name}
    weights["lm_head.weight"] = mx.zeros((2, 2))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    return folder


def run(network: Any, texts: list[list[int]], padding: int = 0) -> list[np.ndarray[Any, Any]]:
    embedder = EncoderEmbedder(
        network, Embedding(32, "mean", encoder=True), padding=padding, prefill_step=512
    )
    work = embedder.embed(texts)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return [np.frombuffer(vector, "<f4") for vector in end.value]


@pytest.mark.parametrize(
    ("kind", "prefix", "dtype"),
    [
        ("bert", "bert.", mx.float32),
        ("xlm-roberta", "", mx.float32),
        ("roberta", "roberta.", mx.float32),
        ("modernbert", "model.", mx.float32),
        ("modernbert", "", mx.float16),
    ],
)
def test_a_text_has_the_same_vector_alone_and_beside_longer_ones(
    tmp_path: Path, kind: str, prefix: str, dtype: Any
) -> None:
    folder = write_encoder(tmp_path / "m", kind, prefix=prefix, dtype=dtype)
    config = load_config(folder)
    options: Any = {
        "model_config": {"add_pooling_layer": False},
        "get_model_classes": encoder_classes(config),
    }
    network = load_model(folder, **options)[0]
    padding = config.get("pad_token_id", 0)
    texts = [
        [number % 40 + 2 for number in range(start, start + length)]
        for start, length in ((0, 3), (7, 30), (1, 12), (5, 100), (9, 4))
    ]
    together = run(network, texts, padding)
    for text, vector in zip(texts, together, strict=True):
        assert np.isfinite(vector).all()
        (alone,) = run(network, [text], padding)
        assert vector == pytest.approx(alone, abs=2e-5 if dtype == mx.float32 else 5e-3)
    assert abs(float(together[0] @ together[1])) < 0.999


def test_weights_of_heads_are_left_out() -> None:
    named = dict.fromkeys(
        ["bert.embeddings.a", "encoder.b", "cls.c", "bert.pooler.d", "embeddings.position_ids"], 1
    )
    assert set(body_weights(named, ("bert.",), ("embeddings", "encoder"))) == {"embeddings.a", "encoder.b"}


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
    ],
)
def test_the_context_is_what_a_text_may_have(config: dict[str, Any], window: int) -> None:
    assert context_window(config, None) == window

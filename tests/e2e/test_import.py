"""The real starter model, imported from the file that its package carries."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load, stream_generate

from supervisor.catalog.scan import Scanner
from supervisor.catalog.starter import find_starter
from tests.fixtures.gguf_files import gguf_name, interleave, saved_arrays
from tests.fixtures.starter import starter_model
from worker.gguf.header import read_header


@pytest.fixture(scope="module")
def folder() -> Path:
    return starter_model()


# Its thirty layers are alike.
@pytest.mark.parametrize(
    "layers",
    [(0, 17, 29), pytest.param(range(30), id="all", marks=[pytest.mark.slow, pytest.mark.timeout(180)])],
)
def test_all_272_tensors_are_exactly_the_file_s(folder: Path, layers: Sequence[int]) -> None:
    source = find_starter()
    assert source is not None
    # Where the tensors are is read by our own reader: the package's takes longer over the vocabulary than
    # all the rest. That both read headers alike is tested with the tiny models.
    content = memoryview(source.read_bytes())
    theirs = {tensor.name: tensor for tensor in read_header(content).tensors}
    arrays = saved_arrays(folder)
    settings = json.loads((folder / "config.json").read_text())["quantization"]
    names = [name for name in arrays if not name.endswith((".scales", ".biases"))]
    assert {gguf_name(name) for name in names} == set(theirs)
    assert len(names) == 272
    for name in names:
        if (number := re.search(r"layers\.(\d+)\.", name)) and int(number[1]) not in layers:
            continue
        layer = name.removesuffix(".weight")
        weights = arrays[name]
        if f"{layer}.scales" in arrays:
            scales, biases = (arrays[f"{layer}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            bits = settings.get(layer, settings)["bits"]
            weights = mx.dequantize(weights, scales, biases, 32, bits)
        ours = np.array(weights)
        heads = 9 if "q_proj" in name else 3 if "k_proj" in name else None
        if heads is not None:
            ours = interleave(ours, heads)
        tensor = theirs[gguf_name(name)]
        blocks = np.frombuffer(tensor.bytes_in(content), np.uint8).reshape(tensor.shape[0], -1)
        values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[tensor.type.name])
        np.testing.assert_array_equal(ours, values.reshape(tensor.shape), err_msg=name)


@pytest.mark.slow
def test_it_knows_the_capital_of_france(folder: Path) -> None:
    model, tokenizer = load(str(folder))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    answer = list(stream_generate(model, tokenizer, prompt, max_tokens=20))
    assert "".join(piece.text for piece in answer) == "The capital of France is Paris."
    assert answer[-1].finish_reason == "stop"


def test_tricky_text_keeps_its_tokens(folder: Path) -> None:
    """Digits one by one and special tokens whole, as the model was trained; every text comes back."""
    _, tokenizer = load(str(folder))
    assert tokenizer.encode("12345 67", add_special_tokens=False) == [33, 34, 35, 36, 37, 216, 38, 39]
    assert tokenizer.encode("<|im_start|>user", add_special_tokens=False) == [1, 4093]
    assert tokenizer.eos_token_ids == {0, 2}
    for text in (
        "  a\n\n\tb ",
        "👩‍👩‍👧 日本 naïve ﬁ",
        "\x00\x7f\u200b\ufeff",
        "don't I'LL",
        "\r\n",
        " " * 40,
        "",
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text


def test_the_catalog_lists_it(folder: Path) -> None:
    found = Scanner().scan(folder)
    assert (found.architecture, found.context, found.problem) == ("llama", 8192, None)
    assert 98_000_000 < found.weights_bytes < 99_000_000
    record = json.loads((folder / "import.json").read_text())
    assert record["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert record["tensor_types"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1}
    assert len(record["sha256"]) == 64

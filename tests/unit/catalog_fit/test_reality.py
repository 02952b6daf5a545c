"""The estimates against what mlx-lm really holds: weights within 5 %, caches within 10 %.

Every kind of model is written, loaded by mlx-lm and run through its batch generator, as a worker does.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import get_total_parameters, load_model

from shared.limits import SHARE_FOR_FLOAT32
from supervisor.catalog.architectures import layout_of
from supervisor.catalog.footprint import Demand, ModelSize, estimate, read_size
from supervisor.catalog.machine import Machine
from tests.fixtures.cache_kinds import KINDS, write_kind
from tests.fixtures.starter import starter_model
from worker.model import precision

GPU = Machine("test GPU", "metal", 64 * 2**30, 48 * 2**30)
CPU = Machine("test CPU", "cpu", 64 * 2**30)

USUAL = (
    "llama",
    "mistral",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "mamba2",
    "lfm2",
    "qwen3_next",
    "falcon_h1",
)
"""One of every way to keep a cache, for every change; the others take their time."""

NOT_BATCHED = {"llama4"}
"""Kinds that mlx-lm can't batch; they are run alone."""

# (rows, prompt tokens): within the first growth step, past it and past every window, and a batch.
RUNS = ((1, 40), (1, 290), (2, 30))
GENERATED = 3


def weights_bytes(network: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(network.parameters()))


def measured_cache(network: Any, *, rows: int, prompt: int) -> tuple[int, int]:
    """Bytes of the caches of `rows` rows and the tokens that each row has by then."""
    generator = BatchGenerator(
        network,
        max_tokens=100,
        prefill_step_size=256,
        stream=mx.default_stream(mx.default_device()),
    )
    try:
        for row in range(rows):
            generator.insert([[(token * 7 + row) % 200 for token in range(prompt)]])
        steps = 0
        while steps < GENERATED:
            _, responses = generator.next()
            steps += len(responses) == rows
        return int(generator.prompt_cache_nbytes), prompt + steps
    finally:
        generator.close()


def measured_alone(network: Any, *, prompt: int) -> tuple[int, int]:
    cache = make_prompt_cache(network)
    for begin in range(0, prompt, 256):
        tokens = [token * 7 % 200 for token in range(begin, min(prompt, begin + 256))]
        network(mx.array([tokens]), cache=cache)
        mx.eval([layer.state for layer in cache])
    for _ in range(GENERATED):
        mx.eval(network(mx.array([[1]]), cache=cache))
    return sum(layer.nbytes for layer in cache), prompt + GENERATED


def estimated_cache(size: ModelSize, machine: Machine, *, rows: int, tokens: int) -> int:
    parts = estimate(size, machine, Demand(context=tokens, rows=rows, prefill_step=256))
    return parts.kv_bytes + parts.state_bytes


@pytest.mark.parametrize(
    "kind", [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_estimate_is_near_what_mlx_holds(kind: str, tmp_path: Path) -> None:
    folder = write_kind(tmp_path / kind, kind)
    network, _ = load_model(folder)
    size = read_size(folder)
    assert size.layout.known
    assert size.weights.packed_bytes == pytest.approx(weights_bytes(network), rel=0.05)
    assert size.weights.unpacked_bytes == pytest.approx(weights_bytes(network), rel=0.05)
    for rows, prompt in RUNS:
        if kind in NOT_BATCHED:
            if rows > 1:
                continue
            real, tokens = measured_alone(network, prompt=prompt)
        else:
            real, tokens = measured_cache(network, rows=rows, prompt=prompt)
        assert real > 0
        assert estimated_cache(size, GPU, rows=rows, tokens=tokens) == pytest.approx(real, rel=0.1), (
            rows,
            prompt,
        )


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "deepseek_v3", "mamba2", "falcon_h1", "qwen3_5"])
def test_half_precision_halves_what_is_half(kind: str, tmp_path: Path) -> None:
    """States that mlx-lm keeps in float32 don't shrink with the model's precision; keys and values do."""
    # Without experts: the CPU backend multiplies with experts in float32 alone.
    folder = write_kind(tmp_path / kind, kind, dtype="bfloat16", n_routed_experts=None)
    network, _ = load_model(folder)
    size = read_size(folder)
    assert size.weights.activation_bytes == 2
    assert size.weights.packed_bytes == pytest.approx(weights_bytes(network), rel=0.05)
    real, tokens = measured_cache(network, rows=1, prompt=290)
    assert estimated_cache(size, GPU, rows=1, tokens=tokens) == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_window_that_is_not_full_yet(kind: str, tmp_path: Path) -> None:
    """A ring takes the prompt as it is and grows by a step with the first generated token."""
    folder = write_kind(tmp_path / kind, kind, sliding_window=1000)
    network, _ = load_model(folder)
    size = read_size(folder)
    for rows, prompt in ((1, 40), (1, 290), (2, 700)):
        real, tokens = measured_cache(network, rows=rows, prompt=prompt)
        assert estimated_cache(size, GPU, rows=rows, tokens=tokens) == pytest.approx(real, rel=0.1)


def test_float32_norms_make_a_float32_cache(tmp_path: Path) -> None:
    """A model imported from GGUF has packed weights and float32 norms: what it keeps is float32."""
    folder = write_kind(tmp_path / "mixed", "llama", dtype="bfloat16")
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    norms = {name: array.astype(mx.float32) for name, array in weights.items() if "norm" in name}
    mx.save_safetensors(str(folder / "model.safetensors"), {**weights, **norms})
    network, _ = load_model(folder)
    real, tokens = measured_cache(network, rows=1, prompt=290)
    assert estimated_cache(read_size(folder), GPU, rows=1, tokens=tokens) == pytest.approx(real, rel=0.1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "deepseek_v3"])
def test_packed_weights_stay_packed_on_a_gpu_and_are_unpacked_on_the_cpu(
    kind: str, bits: int, tmp_path: Path
) -> None:
    folder = write_kind(tmp_path / kind, kind, dtype="bfloat16", bits=bits)
    network, _ = load_model(folder)
    size = read_size(folder)
    demand = Demand(context=100)
    packed = weights_bytes(network)
    assert estimate(size, GPU, demand).weights_bytes == pytest.approx(packed, rel=0.05)
    assert precision.widen(network, lambda done, total: None, available_bytes=2**40)
    unpacked = weights_bytes(network)
    assert unpacked > 2 * packed
    assert estimate(size, CPU, demand).weights_bytes == pytest.approx(unpacked, rel=0.05)
    # Then everything that a row keeps is float32 too.
    real, tokens = measured_cache(network, rows=1, prompt=40)
    assert estimated_cache(size, CPU, rows=1, tokens=tokens) == pytest.approx(real, rel=0.1)


def test_both_sides_agree_when_the_cpu_unpacks(tmp_path: Path) -> None:
    """The worker decides by the memory that is free when it loads; the estimate must draw the same line."""
    folder = write_kind(tmp_path / "llama", "llama", dtype="bfloat16", bits=4)
    size = read_size(folder)
    enough = int(size.weights.unpacked_bytes / SHARE_FOR_FLOAT32) + 1
    for available, unpacked in ((enough, True), (enough - 2, False)):
        network, _ = load_model(folder)
        assert precision.widen(network, lambda done, total: None, available_bytes=available) == unpacked
        machine = Machine("test CPU", "cpu", 64 * 2**30, available_bytes=available)
        parts = estimate(size, machine, Demand(context=100))
        assert parts.weights_bytes == pytest.approx(weights_bytes(network), rel=0.05)


def test_the_starter_model() -> None:
    """A real model, packed in two ways with float32 norms, as its importer leaves it."""
    folder = starter_model()
    network, _ = load_model(folder)
    size = read_size(folder)
    assert size.weights.packed_bytes == pytest.approx(weights_bytes(network), rel=0.05)
    real, tokens = measured_cache(network, rows=1, prompt=3)
    assert estimated_cache(size, GPU, rows=1, tokens=tokens) == pytest.approx(real, rel=0.1)
    unpacked = 4 * get_total_parameters(network)
    assert estimate(size, CPU, Demand(100)).weights_bytes == pytest.approx(unpacked, rel=0.05)


def test_unknown_architectures_are_not_underestimated(tmp_path: Path) -> None:
    """Where nothing is known of windows, every layer counts in full, and the guess says so."""
    folder = write_kind(tmp_path / "gemma3_text", "gemma3_text")
    network, _ = load_model(folder)
    real, tokens = measured_cache(network, rows=1, prompt=290)
    fields = json.loads((folder / "config.json").read_text())
    layout = layout_of({**fields, "model_type": "something_new"})
    assert not layout.known
    assert layout.keys_bytes(tokens, itemsize=4) >= real

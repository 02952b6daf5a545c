"""What fits where, how long and how fast: the arithmetic, on models whose numbers are published."""

import itertools
from pathlib import Path

import msgspec
import pytest

from supervisor.catalog.architectures import layout_of
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.costs import Cost
from supervisor.catalog.fit import ContextError, Report, fits, fits_size, predict_speed, report
from supervisor.catalog.footprint import Demand, ModelSize, Shape, SizeError, estimate, read_size
from supervisor.catalog.machine import Machine, lineup
from supervisor.catalog.tensors import Tensor
from supervisor.catalog.weights import weigh
from supervisor.settings import ModelSettings
from tests.fixtures.cache_kinds import write_kind

GIB = 2**30
M4_MAX = next(
    machine for machine in lineup() if (machine.name, machine.memory_bytes) == ("Apple M4 Max", 64 * GIB)
)
M1_8 = next(machine for machine in lineup() if (machine.name, machine.memory_bytes) == ("Apple M1", 8 * GIB))


def matrix(name: str, rows: int, columns: int, bits: int) -> list[Tensor]:
    """A matrix of `rows` times `columns`, packed by mlx-lm in groups of 64, or plain in 16 bits."""
    if bits == 16:
        return [Tensor(f"{name}.weight", "BF16", (rows, columns), 2 * rows * columns)]
    groups = columns // 64
    return [
        Tensor(f"{name}.weight", "U32", (rows, columns * bits // 32), rows * columns * bits // 8),
        Tensor(f"{name}.scales", "BF16", (rows, groups), 2 * rows * groups),
        Tensor(f"{name}.biases", "BF16", (rows, groups), 2 * rows * groups),
    ]


def qwen3_4b(bits: int) -> ModelSize:
    fields = {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "quantization": {"group_size": 64, "bits": bits},
    }
    tensors = matrix("model.embed_tokens", 151_936, 2560, bits)
    for layer in range(36):
        prefix = f"model.layers.{layer}"
        tensors += matrix(f"{prefix}.self_attn.q_proj", 4096, 2560, bits)
        tensors += matrix(f"{prefix}.self_attn.k_proj", 1024, 2560, bits)
        tensors += matrix(f"{prefix}.self_attn.v_proj", 1024, 2560, bits)
        tensors += matrix(f"{prefix}.self_attn.o_proj", 2560, 4096, bits)
        for name, rows, columns in (("gate", 9728, 2560), ("up", 9728, 2560), ("down", 2560, 9728)):
            tensors += matrix(f"{prefix}.mlp.{name}_proj", rows, columns, bits)
    shape = Shape(hidden=2560, intermediate=9728, heads=32, head_dim=128, vocabulary=151_936)
    return ModelSize("qwen3", weigh(tensors, fields), layout_of(fields), shape, 262_144)


def qwen3_30b_a3b(bits: int) -> ModelSize:
    fields = {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
        "quantization": {"group_size": 64, "bits": bits},
    }
    tensors = matrix("model.embed_tokens", 151_936, 2048, bits) + matrix("lm_head", 151_936, 2048, bits)
    for layer in range(48):
        prefix = f"model.layers.{layer}"
        tensors += matrix(f"{prefix}.self_attn.q_proj", 4096, 2048, bits)
        tensors += matrix(f"{prefix}.self_attn.k_proj", 512, 2048, bits)
        tensors += matrix(f"{prefix}.self_attn.v_proj", 512, 2048, bits)
        tensors += matrix(f"{prefix}.self_attn.o_proj", 2048, 4096, bits)
        tensors += matrix(f"{prefix}.mlp.gate", 128, 2048, bits)
        for name, rows, columns in (("gate", 768, 2048), ("up", 768, 2048), ("down", 2048, 768)):
            tensors += matrix(f"{prefix}.mlp.switch_mlp.{name}_proj", 128 * rows, columns, bits)
    shape = Shape(
        hidden=2048, intermediate=8 * 768, heads=32, head_dim=128, vocabulary=151_936, routed=8 * 2048
    )
    return ModelSize("qwen3_moe", weigh(tensors, fields), layout_of(fields), shape, 262_144)


# Source: mlx-lm's BENCHMARKS.md, M4 Max with 64 GB: tokens/s and peak memory (GB) for a prompt of 2,048
# tokens and 128 generated ones.
@pytest.mark.parametrize(
    ("bits", "tokens_s", "peak_gb"),
    [(16, 52.47, 9.02), (8, 86.91, 5.254), (6, 104.68, 4.25), (5, 116.39, 3.86), (4, 134.52, 3.35)],
)
def test_a_dense_model_against_published_measurements(bits: int, tokens_s: float, peak_gb: float) -> None:
    size = qwen3_4b(bits)
    speed = predict_speed(size, M4_MAX, 2112)
    assert speed.decode_full_tokens_s == pytest.approx(tokens_s, rel=0.05)
    parts = estimate(size, M4_MAX, Demand(context=2176, prefill_step=2048))
    assert parts.total_bytes - parts.process_bytes == pytest.approx(peak_gb * 1e9, rel=0.05)


@pytest.mark.parametrize(
    ("bits", "tokens_s", "peak_gb"),
    [(8, 83.16, 33.46), (6, 94.14, 25.82), (5, 101.00, 22.01), (4, 113.33, 18.20)],
)
def test_a_mixture_of_experts_against_published_measurements(
    bits: int, tokens_s: float, peak_gb: float
) -> None:
    """It is as large as all its experts and as fast as those that a token takes."""
    size = qwen3_30b_a3b(bits)
    speed = predict_speed(size, M4_MAX, 2112)
    assert speed.decode_full_tokens_s == pytest.approx(tokens_s, rel=0.05)
    parts = estimate(size, M4_MAX, Demand(context=2176, prefill_step=2048))
    assert parts.total_bytes - parts.process_bytes == pytest.approx(peak_gb * 1e9, rel=0.05)


def test_prefill_against_a_published_measurement() -> None:
    assert predict_speed(qwen3_4b(4), M4_MAX, 2048).prefill_tokens_s == pytest.approx(1622, rel=0.05)


def test_speed_is_not_guessed() -> None:
    unknown = Machine("some machine", "metal", 64 * GIB, 48 * GIB)
    speed = predict_speed(qwen3_4b(4), unknown, 2048)
    assert (speed.decode_tokens_s, speed.decode_full_tokens_s, speed.prefill_tokens_s) == (None, None, None)
    m3 = next(machine for machine in lineup() if machine.name == "Apple M3")
    assert predict_speed(qwen3_4b(4), m3, 2048).prefill_tokens_s is None


def test_long_texts_are_slower() -> None:
    speed = predict_speed(qwen3_4b(4), M4_MAX, 32_768)
    assert speed.decode_tokens_s is not None and speed.decode_full_tokens_s is not None
    assert speed.decode_full_tokens_s < 0.75 * speed.decode_tokens_s


def test_everything_that_is_demanded_costs() -> None:
    size, base = qwen3_4b(4), Demand(context=4096)
    total = estimate(size, M4_MAX, base).total_bytes
    for more in (
        Demand(context=8192),
        Demand(context=4096, rows=4),
        Demand(context=4096, prefill_step=2048),
        Demand(context=4096, prompt_cache_bytes=GIB),
    ):
        assert estimate(size, M4_MAX, more).total_bytes > total
    parts = estimate(size, M4_MAX, base)
    assert parts.total_bytes == sum(msgspec.structs.astuple(parts))


def test_the_largest_context_is_the_last_that_fits() -> None:
    size, budget = qwen3_4b(4), M1_8.budget_bytes
    fit = fits_size(size, M1_8, budget, Demand(context=262_144), 262_144)
    assert not fit.fits and 4096 < fit.largest_context < 262_144
    for context, expected in ((fit.largest_context, True), (fit.largest_context + 1, False)):
        assert fits_size(size, M1_8, budget, Demand(context=context), 262_144).fits is expected


def test_more_rows_leave_less_context() -> None:
    lengths = [
        fits_size(qwen3_4b(4), M1_8, M1_8.budget_bytes, Demand(4096, rows=rows), 262_144).largest_context
        for rows in (1, 2, 4, 8)
    ]
    assert all(more > fewer for more, fewer in itertools.pairwise(lengths))


def test_what_is_too_large_has_no_context() -> None:
    fit = fits_size(qwen3_30b_a3b(8), M1_8, M1_8.budget_bytes, Demand(context=1), 262_144)
    assert (fit.fits, fit.largest_context) == (False, 0)


def entry(folder: Path, **changes: object) -> ModelEntry:
    fields = {"id": "some/model", "directory": folder, "settings": ModelSettings(), **changes}
    return ModelEntry(**fields)  # type: ignore[arg-type]


def test_a_report_tells_of_a_folder(tmp_path: Path) -> None:
    folder = write_kind(tmp_path / "llama", "llama")
    machine = Machine("here", "metal", 16 * GIB, 10 * GIB)
    found = report(entry(folder, context=2000), machine, rows=2, cost=Cost(1, 3, 2 * GIB), machines=lineup())
    assert (found.model, found.architecture, found.context) == ("some/model", "llama", 2000)
    assert found.known and found.problem is None
    assert found.here is not None and found.here.fits
    assert (found.here.context, found.here.rows, found.here.largest_context) == (2000, 2, 2000)
    assert found.here.budget_bytes == 10 * GIB
    assert (found.estimate_bytes, found.measured_bytes, found.cost_bytes) == (3, 2 * GIB, 2 * GIB)
    assert [fit.machine for fit in found.machines] == [machine.name for machine in lineup()]
    assert all(fit.fits for fit in found.machines)
    # It goes over the wire as it is.
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


def test_adapters_and_a_draft_are_parts_of_it(tmp_path: Path) -> None:
    folder = write_kind(tmp_path / "llama", "llama")
    machine = Machine("here", "metal", 16 * GIB, 10 * GIB)
    alone = fits(entry(folder), machine)
    adapter = tmp_path / "sql"
    adapter.mkdir()
    (adapter / "adapters.safetensors").write_bytes(bytes(1000))
    settings = ModelSettings(adapters={"sql": str(adapter)})
    both = fits(entry(folder, settings=settings, draft=folder), machine)
    assert both.parts.adapters_bytes == 1000
    assert both.parts.draft_bytes == sum((alone.parts.weights_bytes, alone.parts.kv_bytes))
    assert both.total_bytes == alone.total_bytes + 1000 + both.parts.draft_bytes


def test_the_demand_is_bound_by_what_the_model_allows(tmp_path: Path) -> None:
    folder = write_kind(tmp_path / "llama", "llama")
    machine = Machine("here", "metal", 16 * GIB, 10 * GIB)
    assert fits(entry(folder), machine).context == 4096
    assert fits(entry(folder), machine, context=100).context == 100
    assert fits(entry(folder, context=1000), machine).context == 1000
    assert fits(entry(folder), machine, budget_bytes=1).fits is False


def test_more_than_the_model_takes_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = write_kind(tmp_path / "llama", "llama")
    machine = Machine("here", "metal", 16 * GIB, 10 * GIB)
    with pytest.raises(ContextError, match=r"takes at most 4096 tokens, prompt and answer together; "):
        fits(entry(folder, context=4096), machine, context=4097)
    set_lower = entry(folder, context=1000, settings=ModelSettings(context=1000))
    with pytest.raises(ContextError, match=r"at most 1000 tokens, .*, as its settings have it \(context\)"):
        report(set_lower, machine, context=1001)
    # Set to more than it has.
    with pytest.raises(ContextError, match=r"at most 4096 tokens, prompt and answer together; "):
        report(entry(folder, context=4096, settings=ModelSettings(context=9999)), machine, context=9999)


def test_a_broken_model_is_reported_not_raised(tmp_path: Path) -> None:
    machine = Machine("here", "cpu", 16 * GIB)
    known = report(entry(tmp_path, problem="it has no tokenizer files"), machine)
    assert (known.problem, known.here, known.cost_bytes) == ("it has no tokenizer files", None, None)
    found = report(entry(tmp_path / "gone"), machine)
    assert found.problem is not None and "config.json" in found.problem and str(tmp_path) not in found.problem


@pytest.mark.parametrize("config", ["[]", "{", '{"model_type": "llama"}', "[" * 100_000])
def test_a_config_that_says_nothing_is_said_to(tmp_path: Path, config: str) -> None:
    folder = write_kind(tmp_path / "llama", "llama")
    (folder / "config.json").write_text(config)
    with pytest.raises(SizeError, match=r"config\.json"):
        read_size(folder)

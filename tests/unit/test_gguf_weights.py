"""Importing keeps every value: compared with the `gguf` package, which shares no code with the importer."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from shared.importing import Imported, ImportEvent, ImportProgress
from tests.fixtures.gguf_files import (
    GgufFile,
    Weights,
    dequantised,
    gguf_name,
    interleave,
    original_weights,
    saved_arrays,
    tiny_gguf,
)
from tests.fixtures.tiny import Tiny, tiny_model
from worker.gguf.convert import import_gguf
from worker.gguf.rope import llama3_factors


def imported_weights(folder: Path) -> dict[str, Weights]:
    """The folder's weights as float32, as mlx dequantises them."""
    arrays = saved_arrays(folder)
    settings = json.loads((folder / "config.json").read_text()).get("quantization", {})
    found = {}
    for name in [name for name in arrays if not name.endswith((".scales", ".biases"))]:
        layer = name.removesuffix(".weight")
        weights = arrays[name]
        if f"{layer}.scales" in arrays:
            own = settings.get(layer, settings)
            scales, biases = (arrays[f"{layer}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            weights = mx.dequantize(weights, scales, biases, own["group_size"], own["bits"])
        found[name] = np.array(weights.astype(mx.float32))
    return found


def silent(event: ImportEvent) -> None:
    pass


@pytest.mark.parametrize("matrix_type", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_every_value_is_kept(tmp_path: Path, architecture: str, matrix_type: str) -> None:
    tiny = Tiny(architecture)  # type: ignore[arg-type]  # a literal, by the parameters above
    source = tiny_gguf(tmp_path / "a.gguf", tiny=tiny, matrix_type=matrix_type)
    events: list[ImportEvent] = []
    result = import_gguf(source, tmp_path / "model", events.append)
    ours, theirs = imported_weights(tmp_path / "model"), dequantised(source)
    assert {gguf_name(name) for name in ours} == set(theirs)
    for name, weights in ours.items():
        if architecture == "llama" and "q_proj" in name:
            weights = interleave(weights, 4)
        if architecture == "llama" and "k_proj" in name:
            weights = interleave(weights, 2)
        np.testing.assert_array_equal(weights, theirs[gguf_name(name)], err_msg=name)
    assert result == Imported(
        str(tmp_path / "model"), architecture, (tmp_path / "model" / "model.safetensors").stat().st_size
    )
    phases = [event.phase for event in events if isinstance(event, ImportProgress)]
    assert sorted(set(phases), key=phases.index) == ["checksum", "weights", "tokenizer"]


def test_rows_come_back_in_the_checkpoint_s_order(tmp_path: Path) -> None:
    import_gguf(tiny_gguf(tmp_path / "a.gguf"), tmp_path / "model", silent)
    ours = imported_weights(tmp_path / "model")
    for name, weights in original_weights(tiny_model()).items():
        np.testing.assert_array_equal(ours[name], weights, err_msg=name)


def test_format_version_2_reads_alike(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "a.gguf", matrix_type="Q8_0")
    import_gguf(source, tmp_path / "three", silent)
    content = bytearray(source.read_bytes())
    assert content[4] == 3
    content[4] = 2
    source.write_bytes(content)
    import_gguf(source, tmp_path / "two", silent)
    for path in (tmp_path / "three").iterdir():
        if path.name != "import.json":
            assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_a_mixed_file_names_the_layers_that_differ(tmp_path: Path) -> None:
    def change(file: GgufFile) -> None:
        file.types["output.weight"] = "Q8_0"
        file.types["blk.1.ffn_up.weight"] = "F16"

    source = tiny_gguf(tmp_path / "a.gguf", matrix_type="Q4_0", change=change)
    import_gguf(source, tmp_path / "model", silent)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    eight = {"group_size": 32, "bits": 8, "mode": "affine"}
    assert config["quantization"] == {"group_size": 32, "bits": 4, "mode": "affine", "lm_head": eight}
    dtypes = {name: array.dtype for name, array in saved_arrays(tmp_path / "model").items()}
    assert dtypes["model.layers.1.mlp.up_proj.weight"] == mx.float16
    assert dtypes["model.layers.0.input_layernorm.weight"] == mx.float32


def test_without_an_output_matrix_the_embeddings_are_tied(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "a.gguf", change=lambda file: file.tensors.__delitem__("output.weight"))
    import_gguf(source, tmp_path / "model", silent)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is True
    assert "lm_head.weight" not in imported_weights(tmp_path / "model")


def test_llama_3_rope_factors_become_its_parameters(tmp_path: Path) -> None:
    factors = llama3_factors(500_000.0, 16, 32.0).astype(np.float32)

    def change(file: GgufFile) -> None:
        file.values["llama.rope.freq_base"] = 500_000.0
        file.tensors["rope_freqs.weight"] = factors

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    scaling = json.loads((tmp_path / "model" / "config.json").read_text())["rope_scaling"]
    assert scaling == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    from mlx_lm.models.rope_utils import initialize_rope

    rope = initialize_rope(16, 500_000.0, False, scaling)
    unscaled = 500_000.0 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(np.array(rope._freqs), unscaled * factors, rtol=1e-4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 512},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ),
        ({"scaling.type": "none"}, None),
    ],
)
def test_rope_scaling_is_kept(
    tmp_path: Path, values: dict[str, object], expected: dict[str, object] | None
) -> None:
    def change(file: GgufFile) -> None:
        file.values.update({f"llama.rope.{key}": value for key, value in values.items()})

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    assert json.loads((tmp_path / "model" / "config.json").read_text()).get("rope_scaling") == expected


def qwen2(file: GgufFile) -> None:
    """Turn a llama file into a qwen2 one: other names, and biases on q, k and v."""
    file.architecture = "qwen2"
    file.values = {key.replace("llama.", "qwen2."): value for key, value in file.values.items()}
    rows = {"q": 64, "k": 32, "v": 32}
    random = np.random.default_rng(0)
    for layer in range(2):
        for name, size in rows.items():
            file.tensors[f"blk.{layer}.attn_{name}.bias"] = random.normal(size=size).astype(np.float32)


@pytest.mark.parametrize("matrix_type", ["F32", "Q4_1"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_mlx_lm_loads_and_runs_it(tmp_path: Path, kind: str, matrix_type: str) -> None:
    from mlx_lm import load

    source = tiny_gguf(
        tmp_path / "a.gguf",
        tiny=Tiny("qwen3" if kind == "qwen3" else "llama"),
        matrix_type=matrix_type,
        change=qwen2 if kind == "qwen2" else None,
    )
    import_gguf(source, tmp_path / "model", silent)
    model, tokenizer = load(str(tmp_path / "model"))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], add_generation_prompt=True)
    logits = model(mx.array([prompt]))
    assert logits.shape == (1, len(prompt), 263)
    assert mx.isfinite(logits).all()
    if kind != "qwen2" and matrix_type == "F32":
        original, _ = load(str(tiny_model(Tiny("qwen3" if kind == "qwen3" else "llama"))))
        assert mx.array_equal(logits, original(mx.array([prompt])))

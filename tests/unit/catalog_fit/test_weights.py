"""What a model's files come to, from their headers alone."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.tensors import Tensor, WeightsError, read_tensors
from supervisor.catalog.weights import weigh

ITEMSIZES = {"F32": 4, "U32": 4, "I32": 4, "BF16": 2, "F16": 2, "U8": 1, "F8_E4M3": 1}


def tensor(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> Tensor:
    found = Tensor(name, dtype, shape, 0)
    return Tensor(name, dtype, shape, found.elements * ITEMSIZES[dtype])


def write_header(path: Path, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def entry(shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def test_every_file_that_mlx_lm_loads_is_read(tmp_path: Path) -> None:
    write_header(
        tmp_path / "model-00001-of-00002.safetensors", {"a": entry([2, 3], 0, 24), "__metadata__": {}}
    )
    write_header(tmp_path / "model-00002-of-00002.safetensors", {"b": entry([5], 0, 20)})
    write_header(tmp_path / "adapters.safetensors", {"c": entry([5], 0, 20)})
    assert read_tensors(tmp_path) == [Tensor("a", "F32", (2, 3), 24), Tensor("b", "F32", (5,), 20)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 10) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}     ',
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[9,4]}}      ',
        struct.pack("<Q", 100_000) + b"[" * 100_000,
    ],
    ids=["empty", "huge", "short", "list", "negative", "backwards", "deep"],
)
def test_damaged_headers_are_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match="damaged"):
        read_tensors(tmp_path)


def test_no_weights_and_no_access_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no weights"):
        read_tensors(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsError, match="can't be read"):
        read_tensors(tmp_path)


def test_what_mlx_lm_drops_does_not_count() -> None:
    language = tensor("language_model.model.layers.0.mlp.up_proj.weight", (8, 8))
    dropped = [
        tensor("vision_tower.layers.0.weight", (100, 100)),
        tensor("multi_modal_projector.linear.weight", (100, 100)),
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", (64,), "F32"),
        tensor("mtp.layers.0.weight", (100, 100)),
        tensor("language_model.model.layers.1.mlp.up_proj.weight", (100, 100)),
    ]
    weights = weigh([language, *dropped], {"num_hidden_layers": 1})
    assert (weights.packed_bytes, weights.parameters) == (128, 64)
    assert weights.file_bytes == 128 + sum(one.nbytes for one in dropped)


def test_a_tied_output_is_the_embedding_and_is_read_whole() -> None:
    tensors = [tensor("model.embed_tokens.weight", (100, 8)), tensor("model.norm.weight", (8,))]
    tied = weigh([*tensors, tensor("lm_head.weight", (100, 8))], {"tie_word_embeddings": True})
    assert tied.packed_bytes == tied.active_bytes == 1600 + 16


def test_an_embedding_beside_an_output_is_only_looked_up() -> None:
    tensors = [tensor("model.embed_tokens.weight", (100, 8)), tensor("lm_head.weight", (100, 8))]
    weights = weigh(tensors, {"tie_word_embeddings": False})
    assert (weights.packed_bytes, weights.active_bytes) == (3200, 1600)
    assert weights.prompt_parameters == 0


def test_of_the_experts_a_token_reads_its_own() -> None:
    tensors = [
        tensor("model.layers.0.mlp.switch_mlp.up_proj.weight", (128, 4, 8)),
        tensor("model.layers.1.mlp.experts.7.up_proj.weight", (4, 8)),
        tensor("model.layers.1.mlp.shared_experts.up_proj.weight", (4, 8)),
    ]
    weights = weigh(tensors, {"num_experts": 128, "num_experts_per_tok": 8})
    assert weights.active_bytes == 128 * 64 // 16 + 64 // 16 + 64
    assert weights.expert_layers == 2


def test_packed_matrices_stand_for_more_numbers() -> None:
    """Eight 4-bit numbers lie in 32 bits; a module may be packed in another way than the rest."""
    tensors = [
        tensor("a.weight", (16, 8), "U32"),
        tensor("a.scales", (16, 1)),
        tensor("a.biases", (16, 1)),
        tensor("a.bias", (16,)),
        tensor("b.weight", (16, 16), "U32"),
        tensor("b.scales", (16, 2)),
        tensor("b.biases", (16, 2)),
    ]
    quantization = {"group_size": 64, "bits": 4, "b": {"group_size": 32, "bits": 8}}
    weights = weigh(tensors, {"quantization": quantization})
    assert weights.parameters == 16 * 64 + 16 + 16 * 64
    assert weights.unpacked_bytes == 4 * weights.parameters
    assert weights.packed_bytes == sum(one.nbytes for one in tensors)


def test_fp8_checkpoints_become_half_precision() -> None:
    tensors = [tensor("a.weight", (128, 128), "F8_E4M3"), tensor("a.weight_scale_inv", (1, 1), "F32")]
    fields = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert weigh(tensors, fields).packed_bytes == 2 * 128 * 128
    own = {
        "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32]}
    }
    assert weigh(tensors, own).packed_bytes == 128 * 128 + 4


def test_foreign_packings_are_unpacked_in_thought() -> None:
    blocks = [
        tensor("mlp.experts.gate_up_proj_blocks", (4, 8, 2, 16), "U8"),
        tensor("x_scales", (4, 8, 2), "U8"),
    ]
    assert weigh(blocks, {}).parameters == 2 * 4 * 8 * 2 * 16
    awq = [
        tensor("a.qweight", (64, 8), "I32"),
        tensor("a.qzeros", (1, 8), "I32"),
        tensor("a.scales", (1, 64)),
    ]
    assert weigh(awq, {"quantization_config": {"quant_method": "awq", "bits": 4}}).parameters == 64 * 64


@pytest.mark.parametrize(
    ("dtypes", "size"),
    [
        (("BF16", "BF16"), 2),
        (("F16", "F16"), 2),
        (("F16", "F32"), 4),
        (("F16", "BF16"), 4),
        (("F32", "F32"), 4),
    ],
)
def test_activations_are_as_wide_as_the_widest(dtypes: tuple[str, str], size: int) -> None:
    tensors = [
        tensor("model.embed_tokens.weight", (4, 4), dtypes[0]),
        tensor("model.layers.0.input_layernorm.weight", (4,), dtypes[1]),
        tensor("model.layers.0.mixer.A_log", (4,), "F32"),
    ]
    assert weigh(tensors, {}).activation_bytes == size

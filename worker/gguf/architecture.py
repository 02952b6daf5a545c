"""From a GGUF architecture to mlx-lm's: the config, and where every tensor goes.

Source: the names and the row order that llama.cpp's converter writes. For the llama architecture it
interleaves the two halves of every head's rows in q and k, since its RoPE rotates neighbouring pairs; mlx
rotates halves, as the original checkpoints do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker.gguf.errors import GgufError
from worker.gguf.header import Header, Metadata, Tensor
from worker.gguf.rope import ROPE_FREQUENCIES, rope_scaling
from worker.gguf.types import unpack_plain

ConfigValue = str | int | float | bool | list[str] | Mapping[str, "ConfigValue"]


@dataclass(frozen=True)
class Placement:
    """`target` is the tensor's name in mlx-lm's model.

    `heads` is set where the rows of each of that many heads are interleaved.
    """

    tensor: Tensor
    target: str
    heads: int | None = None


@dataclass(frozen=True)
class Plan:
    config: dict[str, ConfigValue]
    placements: tuple[Placement, ...]
    vocabulary: int
    """Rows of the embeddings: token ids are below this."""


@dataclass(frozen=True)
class _Family:
    model_type: str
    class_name: str
    interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    own_head_dim: bool = True
    """Whether mlx-lm reads `head_dim`; if not, heads must divide the hidden size evenly."""


_FAMILIES: Final = {
    "llama": _Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": _Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True, own_head_dim=False),
    "qwen3": _Family("qwen3", "Qwen3ForCausalLM", qk_norm=True),
}


@dataclass(frozen=True)
class _Sizes:
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


@dataclass(frozen=True)
class _Expected:
    source: str
    target: str
    shape: tuple[int, ...]
    heads: int | None = None


def plan_import(header: Header, data: memoryview) -> Plan:
    """What to write for the model in `header`, which was read from `data`.

    Raises GgufError when the model can't be expressed: an architecture that is not known, tensors that are
    missing, unknown or of an unexpected shape, types that can't be read, or one part of a split file.
    """
    metadata = header.metadata
    _check_is_whole_model(metadata)
    name = metadata.text("general.architecture")
    if name is None:
        raise GgufError("the file does not name its architecture (general.architecture)")
    family = _FAMILIES.get(name)
    if family is None:
        raise GgufError(
            f"architecture {name!r} can't be imported; {', '.join(_FAMILIES)} can. "
            "Look for a version of this model in MLX format instead"
        )
    if metadata.integer(f"{name}.expert_count"):
        raise GgufError(f"this is a mixture of experts of architecture {name!r}, which can't be imported")
    _check_types(header.tensors)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    sizes = _sizes(metadata, name, family, tensors)
    frequencies = tensors.pop(ROPE_FREQUENCIES, None)
    placements = tuple(_place(sizes, family, tensors, name))
    frequency_base = metadata.number(f"{name}.rope.freq_base")
    theta = 10000.0 if frequency_base is None else frequency_base
    config = _config(metadata, name, family, sizes, theta)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if family.model_type == "llama":
        config["attention_bias"] = _has_attention_bias(tensors)
        config["mlp_bias"] = _has_mlp_bias(tensors)
    scaling = rope_scaling(metadata, name, theta, _factors(frequencies, sizes, data))
    if scaling is not None:
        config["rope_scaling"] = scaling
    return Plan(config, placements, sizes.vocabulary)


def _factors(tensor: Tensor | None, sizes: _Sizes, data: memoryview) -> NDArray[np.float32] | None:
    if tensor is None:
        return None
    if tensor.type.name != "F32" or tensor.shape != (sizes.head_dim // 2,):
        raise GgufError(f"tensor {tensor.name} does not fit the size of the heads")
    return unpack_plain(tensor.bytes_in(data), tensor.type, tensor.shape).astype(np.float32)


def _check_is_whole_model(metadata: Metadata) -> None:
    parts = metadata.integer("split.count") or 1
    if parts > 1:
        raise GgufError(
            f"this is one of {parts} parts of a split model; merge them first (llama-gguf-split --merge)"
        )
    kind = metadata.text("general.type") or "model"
    if kind != "model":
        raise GgufError(f"this file holds a {kind}, not a model")


def _check_types(tensors: tuple[Tensor, ...]) -> None:
    if not tensors:
        raise GgufError("the file holds no tensors, only metadata")
    for tensor in tensors:
        if not tensor.type.importable:
            raise GgufError(
                f"tensor {tensor.name} has type {tensor.type.name}, which can't be imported; "
                "Q4_0, Q4_1, Q8_0, F16, BF16 and F32 can. Look for such a file of this model"
            )
        if tensor.type.bits is not None and len(tensor.shape) != 2:
            raise GgufError(f"tensor {tensor.name} is quantised but no matrix; the file is damaged")


def _positive(metadata: Metadata, key: str, default: int | None = None) -> int:
    value = metadata.values.get(key)
    if isinstance(value, list):
        # A list has one number for each layer; mlx-lm's models of these families have one for all.
        if not value or any(item != value[0] for item in value):
            raise GgufError(f"{key} differs between layers, which can't be imported")
        metadata = Metadata({key: value[0]})
    number = metadata.integer(key)
    if number is None:
        number = default
    if number is None:
        raise GgufError(f"the metadata field {key} is missing")
    if number <= 0:
        raise GgufError(f"the metadata field {key} is {number}; the file is damaged")
    return number


def _sizes(metadata: Metadata, name: str, family: _Family, tensors: dict[str, Tensor]) -> _Sizes:
    hidden = _positive(metadata, f"{name}.embedding_length")
    heads = _positive(metadata, f"{name}.attention.head_count")
    kv_heads = _positive(metadata, f"{name}.attention.head_count_kv", heads)
    head_dim = _positive(metadata, f"{name}.attention.key_length", hidden // heads or None)
    if metadata.integer(f"{name}.attention.value_length") not in (None, head_dim):
        raise GgufError("keys and values have heads of different sizes, which can't be imported")
    if metadata.integer(f"{name}.rope.dimension_count") not in (None, head_dim):
        raise GgufError("RoPE turns only a part of each head, which can't be imported")
    if heads % kv_heads or head_dim % 2 or (not family.own_head_dim and head_dim * heads != hidden):
        raise GgufError(f"the sizes of the attention heads don't fit together for architecture {name!r}")
    embeddings = tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise GgufError("tensor token_embd.weight is missing or no matrix")
    layers = _positive(metadata, f"{name}.block_count")
    if layers > len(tensors):
        raise GgufError(f"the file is to have {layers} layers but holds only {len(tensors)} tensors")
    intermediate = _positive(metadata, f"{name}.feed_forward_length")
    return _Sizes(hidden, layers, intermediate, heads, kv_heads, head_dim, embeddings.shape[0])


def _config(
    metadata: Metadata, name: str, family: _Family, sizes: _Sizes, theta: float
) -> dict[str, ConfigValue]:
    epsilon = metadata.number(f"{name}.attention.layer_norm_rms_epsilon")
    if epsilon is None or not epsilon > 0:
        raise GgufError(
            f"the metadata field {name}.attention.layer_norm_rms_epsilon is missing or not positive"
        )
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.intermediate,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": epsilon,
        "rope_theta": theta,
        "max_position_embeddings": _positive(metadata, f"{name}.context_length"),
        "vocab_size": sizes.vocabulary,
    }


def _has_attention_bias(tensors: dict[str, Tensor]) -> bool:
    return "blk.0.attn_q.bias" in tensors


def _has_mlp_bias(tensors: dict[str, Tensor]) -> bool:
    return "blk.0.ffn_up.bias" in tensors


def _expected(sizes: _Sizes, family: _Family, tensors: dict[str, Tensor]) -> Iterator[_Expected]:
    hidden, inner = sizes.hidden, sizes.intermediate
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    q_heads, k_heads = (sizes.heads, sizes.kv_heads) if family.interleaved else (None, None)
    llama = family.model_type == "llama"
    attention_bias = llama and _has_attention_bias(tensors)
    mlp_bias = llama and _has_mlp_bias(tensors)

    yield _Expected("token_embd.weight", "model.embed_tokens.weight", (sizes.vocabulary, hidden))
    yield _Expected("output_norm.weight", "model.norm.weight", (hidden,))
    if "output.weight" in tensors:
        yield _Expected("output.weight", "lm_head.weight", (sizes.vocabulary, hidden))
    matrices = (
        ("attn_q", "self_attn.q_proj", queries, hidden, attention_bias or family.qkv_bias, q_heads),
        ("attn_k", "self_attn.k_proj", keys, hidden, attention_bias or family.qkv_bias, k_heads),
        ("attn_v", "self_attn.v_proj", keys, hidden, attention_bias or family.qkv_bias, None),
        ("attn_output", "self_attn.o_proj", hidden, queries, attention_bias, None),
        ("ffn_gate", "mlp.gate_proj", inner, hidden, mlp_bias, None),
        ("ffn_up", "mlp.up_proj", inner, hidden, mlp_bias, None),
        ("ffn_down", "mlp.down_proj", hidden, inner, mlp_bias, None),
    )
    norms = [
        ("attn_norm", "input_layernorm", hidden),
        ("ffn_norm", "post_attention_layernorm", hidden),
    ]
    if family.qk_norm:
        norms += [
            ("attn_q_norm", "self_attn.q_norm", sizes.head_dim),
            ("attn_k_norm", "self_attn.k_norm", sizes.head_dim),
        ]
    for layer in range(sizes.layers):
        here, there = f"blk.{layer}.", f"model.layers.{layer}."
        for source, target, rows, columns, biased, heads in matrices:
            yield _Expected(f"{here}{source}.weight", f"{there}{target}.weight", (rows, columns), heads)
            if biased:
                yield _Expected(f"{here}{source}.bias", f"{there}{target}.bias", (rows,), heads)
        for source, target, size in norms:
            yield _Expected(f"{here}{source}.weight", f"{there}{target}.weight", (size,))


def _place(
    sizes: _Sizes, family: _Family, tensors: dict[str, Tensor], architecture: str
) -> Iterator[Placement]:
    unplaced = dict(tensors)
    for expected in _expected(sizes, family, tensors):
        tensor = unplaced.pop(expected.source, None)
        if tensor is None:
            raise GgufError(f"tensor {expected.source} is missing")
        if tensor.shape != expected.shape:
            raise GgufError(
                f"tensor {tensor.name} has the shape {tensor.shape}; its metadata asks for {expected.shape}"
            )
        yield Placement(tensor, expected.target, expected.heads)
    if unplaced:
        raise GgufError(
            f"tensor {min(unplaced)} has no place in architecture {architecture!r} as mlx-lm knows it"
        )

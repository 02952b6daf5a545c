"""What a model's weights come to in memory, told from the headers of its files and its config.json.

Three questions, three answers: how many bytes as mlx-lm keeps them (a GPU keeps quantised weights packed),
how many parameters (the CPU backend unpacks them to float32 when they fit), and how many of both one decoded
token reads, of which a mixture of experts needs only some.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from supervisor.catalog.architectures import Config, ConfigError, model_config
from supervisor.catalog.tensors import Tensor

ActivationBytes = Literal[2, 4]

_PARTS_NOT_LOADED: Final = re.compile(
    r"(^|\.)(vision_tower|vision_model|vision_encoder|visual|vision_projection|multi_modal_projector|mm_projector"
    r"|embed_vision|audio_tower|audio_model|embed_audio|patch_merge_mlp|mtp|rotary_emb|rotary_pos_emb)\."
)
"""Towers of other senses, extra prediction layers and tables that mlx-lm computes itself."""
_LAYER: Final = re.compile(r"^(?:language_model\.|model\.)*layers\.(\d+)\.")
_EXPERTS: Final = re.compile(
    r"\.(experts|switch_mlp|switch_glu)\.|\.block_sparse_moe\.(input|output)_linear\."
)
_TABLE: Final = re.compile(
    r"(^|\.)(embed_tokens|word_embeddings|embeddings|embedding|wte|tok_embeddings|embed_in|transformer\.wte"
    r"|embed_tokens_per_layer|embedders\.\d+)\.(weight|scales|biases)$"
)
_PER_LAYER_TABLE: Final = re.compile(r"(embed_tokens_per_layer|embedders\.\d+)\.")
_OUTPUT: Final = re.compile(r"(^|\.)(lm_head|output|embed_out|output_layer)\.")
_NORM: Final = re.compile(r"norm[a-z0-9_]*\.weight$|ln_[a-z0-9]+\.weight$")

# As AutoGPTQ, AutoAWQ, OpenAI's MXFP4 and DeepSeek's fp8 name what belongs to one matrix.
_FP8_SCALE: Final = ".weight_scale_inv"
_SCALES: Final = (".scales", ".biases", "_scales", _FP8_SCALE, ".qzeros", ".g_idx", ".weight_scale")


class Weights(msgspec.Struct, frozen=True):
    """Bytes and parameters of what a worker loads."""

    file_bytes: int
    """All tensors in the files, loaded or not."""
    packed_bytes: int
    """In memory as mlx-lm keeps them."""
    parameters: int
    """Numbers that the tensors stand for, once unpacked."""
    active_bytes: int
    """Of `packed_bytes`, what one decoded token reads."""
    active_parameters: int
    prompt_parameters: int
    """Of `parameters`, those that every prompt token is multiplied with: without tables and output."""
    largest_parameters: int
    """Of the largest tensor."""
    activation_bytes: ActivationBytes
    """Size of one activation, and of one element of the KV cache, while weights stay packed."""
    expert_layers: int
    """Layers with a mixture of experts."""

    @property
    def unpacked_bytes(self) -> int:
        """In memory as float32."""
        return 4 * self.parameters


def weigh(tensors: Iterable[Tensor], fields: Mapping[str, object]) -> Weights:
    """Add up what the files hold; `fields` is the content of config.json."""
    every = list(tensors)
    config = model_config(fields)
    loaded = _loaded(every, config)
    share = expert_share(config)
    packing = _Packing(fields, loaded)
    untied = any(_OUTPUT.search(tensor.name) for tensor in loaded)
    packed = parameters = largest = 0
    active_bytes = active_parameters = prompt_parameters = 0.0
    expert_layers = set()
    for tensor in loaded:
        nbytes, count = packing.nbytes(tensor), packing.parameters(tensor)
        packed += nbytes
        parameters += count
        largest = max(largest, count)
        if expert := _EXPERTS.search(tensor.name):
            expert_layers.add(tensor.name[: expert.start()])
            read = share
        else:
            read = 0.0 if _only_looked_up(tensor.name, untied=untied) else 1.0
        active_bytes += read * nbytes
        active_parameters += read * count
        if not _TABLE.search(tensor.name) and not _OUTPUT.search(tensor.name):
            prompt_parameters += read * count
    return Weights(
        file_bytes=sum(tensor.nbytes for tensor in every),
        packed_bytes=packed,
        parameters=parameters,
        active_bytes=round(active_bytes),
        active_parameters=round(active_parameters),
        prompt_parameters=round(prompt_parameters),
        largest_parameters=largest,
        activation_bytes=_activation_bytes(loaded),
        expert_layers=len(expert_layers),
    )


def expert_share(config: Config) -> float:
    """Share of a layer's experts that compute one token; 1 for a dense model."""
    nested = config.part("ffn_config")
    chosen = config.optional(
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_top_k", "moe_k"
    ) or nested.optional("moe_top_k")
    there = config.optional(
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"
    ) or nested.optional("moe_num_experts")
    return min(1.0, chosen / there) if chosen and there else 1.0


def _loaded(tensors: list[Tensor], config: Config) -> list[Tensor]:
    """The tensors that stay: mlx-lm's `sanitize` drops the others."""
    try:
        layers = config.layers
    except ConfigError:
        layers = None
    names = {tensor.name for tensor in tensors}
    tied = config.flag("tie_word_embeddings", default=False) and any(_TABLE.search(name) for name in names)

    def stays(name: str) -> bool:
        if _PARTS_NOT_LOADED.search(name) or (tied and re.search(r"(^|\.)lm_head\.", name)):
            return False
        layer = _LAYER.match(name)
        # Layers past the last predict further tokens; they are counted apart from the others.
        return layer is None or layers is None or int(layer[1]) < layers

    return [tensor for tensor in tensors if stays(tensor.name)]


def _only_looked_up(name: str, *, untied: bool) -> bool:
    """Whether a token reads one row of it: an embedding that is not the output matrix as well."""
    if _PER_LAYER_TABLE.search(name):
        return True
    return untied and _TABLE.search(name) is not None


def _activation_bytes(tensors: list[Tensor]) -> ActivationBytes:
    """Embeddings and norms settle it: MLX computes in the widest type that takes part."""
    kinds = {
        tensor.dtype
        for tensor in tensors
        if tensor.dtype in ("F32", "F16", "BF16")
        and (_TABLE.search(tensor.name) or _NORM.search(tensor.name))
    }
    return 4 if "F32" in kinds or kinds == {"F16", "BF16"} else 2


class _Packing:
    """How matrices are packed in the files, and what becomes of them when they are loaded."""

    def __init__(self, fields: Mapping[str, object], tensors: list[Tensor]) -> None:
        quantization = fields.get("quantization")
        self._groups = Config(quantization if isinstance(quantization, dict) else {})
        foreign = Config(fields).part("quantization_config")
        if not foreign.has("quant_method"):
            foreign = Config.of_model(fields).part("quantization_config")
        self._bits = foreign.whole("bits", default=4)
        # Power-of-two scales over blocks of 32 x 32 are MLX's own format, which stays packed.
        own_fp8 = foreign.text("scale_fmt") == "ue8m0" and foreign.wholes("weight_block_size") == [32, 32]
        self._widens_fp8 = not own_fp8 and any(tensor.name.endswith(_FP8_SCALE) for tensor in tensors)
        self._scales = {
            tensor.name: tensor for tensor in tensors if tensor.name.endswith((".scales", "_scales"))
        }

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes in memory, packed as mlx-lm keeps it."""
        if self._widens_fp8 and tensor.name.endswith(_FP8_SCALE):
            return 0
        if self._widens_fp8 and tensor.dtype.startswith("F8_"):
            return 2 * tensor.elements
        return tensor.nbytes

    def parameters(self, tensor: Tensor) -> int:
        """Numbers that this tensor stands for; scales and zero points stand for none of their own."""
        name = tensor.name
        if name.endswith(_SCALES):
            return 0
        if name.endswith("_blocks"):
            return 2 * tensor.elements
        if name.endswith(".qweight"):
            return tensor.elements * 32 // max(1, self._bits)
        scales = self._scales.get(f"{name.removesuffix('.weight')}.scales")
        if scales is not None and name.endswith(".weight"):
            return scales.elements * self._group_size(name.removesuffix(".weight"))
        return tensor.elements

    def _group_size(self, module: str) -> int:
        """Numbers that share a scale: the model's, unless this module has its own."""
        return self._groups.part(module).whole(
            "group_size", default=self._groups.whole("group_size", default=64)
        )

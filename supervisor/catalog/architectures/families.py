"""Which architecture keeps what: the table behind `layout_of`.

The names are mlx-lm's modules, which are `model_type` in config.json, and the types it maps onto them.
An architecture that is not here gets a careful guess, marked as such.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from shared.encoders import ENCODERS
from supervisor.catalog.architectures import attention, recurrent
from supervisor.catalog.architectures.config import Config, ConfigError
from supervisor.catalog.architectures.parts import CacheLayout, Keys, Part

Family = Callable[[Config], Iterable[Part]]


def _each(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


_FAMILIES: Final[Mapping[str, Family]] = {
    **_each(
        "Klear apertus bailing_moe bitnet cohere deepseek dots1 ernie4_5 ernie4_5_moe exaone gemma gemma2 glm"
        " glm4 glm4_moe gpt2 gpt_neox gptj granite granitemoe helium hunyuan hunyuan_v1_dense internlm2"
        " internlm3 lille-130m llama4_text mimo minicpm minimax minimax_m2 mixtral nanochat nemotron olmo"
        " olmo2 olmoe phi phi-msft phi3 phi3small phimoe phixtral qwen qwen2 qwen2_5_vl qwen2_moe qwen2_vl"
        " qwen3 qwen3_moe qwen3_vl qwen3_vl_moe seed_oss solar_open stablelm starcoder2 talkie telechat3",
        attention.full,
    ),
    **_each("iquestcoder laguna llama ministral3 mistral smollm3 xverse", attention.all_full_unless_said),
    **_each(
        "afmoe exaone_moe mellum muse_glimmer muse_spark olmo3 spark2_5",
        attention.every_fourth_full,
    ),
    **_each("gemma3 gemma3_text", partial(attention.every_nth_full, nth=6, window=512)),
    **_each("gemma4 gemma4_text gemma4_unified", attention.wide_global_layers),
    **_each(
        "deepseek_v3 glm4_moe_lite joyai_llm_flash kimi_k2 kimi_k25 kimi_vl mistral4",
        attention.latent,
    ),
    **_each("deepseek_v2 minicpm3 youtu_llm", attention.latent_unfolded),
    **_each("deepseek_v32 glm_moe_dsa", attention.latent_indexed),
    **_each("longcat_flash longcat_flash_ngram", attention.latent_twice),
    **_each("falcon_mamba mamba", recurrent.selective),
    **_each("lfm2 lfm2-vl lfm2_vl lfm2_moe", recurrent.short_convolutions),
    **_each(
        "prism_hadamard_qwen35 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next",
        recurrent.gated_delta,
    ),
    **_each("kimi_k3 kimi_linear", recurrent.delta_and_latent),
    "afm7": attention.reused_by_last,
    "baichuan_m1": attention.convolved_keys,
    "bailing_hybrid": recurrent.lightning_between_latent,
    "bailing_moe_linear": recurrent.lightning_between_attention,
    "bailing_moe_v3": recurrent.delta_between_latent,
    "cohere2": partial(attention.every_nth_full, nth=4, window=4096),
    "dbrx": attention.nested_attention,
    "exaone4": attention.lettered,
    "falcon_h1": recurrent.duality_beside_attention,
    "gear": recurrent.convolved_mixers,
    "gemma3n": attention.last_layers_share,
    "gpt_bigcode": attention.one_kv_head,
    "gpt_oss": attention.alternating,
    "granitemoehybrid": recurrent.duality_by_layer_type,
    "iquestloopcoder": attention.second_loop_in_window,
    "jamba": recurrent.selective_between_attention,
    "llama4": attention.chunked,
    "mamba2": recurrent.duality,
    "mimo_v2_flash": attention.other_dims_in_window,
    "minimax_m3_vl": attention.block_indexed,
    "nanbeige": attention.looped,
    "nemotron-nas": attention.searched_blocks,
    "nemotron_h": recurrent.duality_by_letter,
    "olmo_hybrid": recurrent.gated_delta_by_layer_type,
    "openelm": attention.heads_by_layer,
    "plamo": attention.shared_heads,
    "plamo2": recurrent.duality_between_attention,
    "plamo3": partial(attention.every_nth_full, nth=8, window=2048),
    "recurrent_gemma": recurrent.linear_recurrence,
    "rwkv7": recurrent.time_mixing,
    "step3p5": attention.other_heads_in_window,
}

_VESSELS: Final = frozenset({"llava", "mistral3", "pixtral"})
"""Types that only wrap another one, named by `model_type` in `text_config` or, without one, Llama."""

# What mlx-lm assumes where a configuration is silent. Only what an estimate reads, and only for families
# whose configurations really are silent.
_GEMMA3: Final = {"num_hidden_layers": 26, "head_dim": 256, "hidden_size": 1152}
_MLA: Final = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "cohere2": {"head_dim": 128},
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "falcon_h1": {"mamba_d_head": 64, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_d_state": 128},
    "gemma3": {**_GEMMA3, "num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma3_text": {**_GEMMA3, "num_attention_heads": 4, "num_key_value_heads": 1},
    "gemma4": {
        "head_dim": 256,
        "global_head_dim": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "num_hidden_layers": 35,
        "hidden_size": 1536,
    },
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8},
    "joyai_llm_flash": _MLA,
    "kimi_k2": _MLA,
    "kimi_k25": _MLA,
    "kimi_vl": _MLA,
    "phixtral": {"num_heads": 32, "model_dim": 2560, "num_layers": 32},
    "plamo2": {
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_num_heads": 64,
        "mamba_step": 2,
        "num_key_value_heads": 4,
        "hidden_size_per_head": 128,
    },
}
_DEFAULTS_LIKE: Final = {"gemma4_text": "gemma4", "gemma4_unified": "gemma4", "phi-msft": "phixtral"}


def architecture_of(fields: Mapping[str, object]) -> str:
    """The name under which the table knows the model; empty when config.json names no type."""
    outer, text = fields.get("model_type"), fields.get("text_config")
    inner = text.get("model_type") if isinstance(text, dict) else None
    if outer == "bailing_hybrid" and "BailingMoeV3ForCausalLM" in _architectures(fields):
        return "bailing_moe_v3"
    if outer in _VESSELS:
        return inner if isinstance(inner, str) else "llama"
    if outer not in _FAMILIES and isinstance(inner, str) and inner in _FAMILIES:
        return inner
    return outer if isinstance(outer, str) else ""


def model_config(fields: Mapping[str, object]) -> Config:
    """The fields with what mlx-lm assumes for those that are missing."""
    name = architecture_of(fields)
    defaults = _DEFAULTS.get(_DEFAULTS_LIKE.get(name, name), {})
    return Config.of_model(fields).with_defaults(**defaults)


def layout_of(fields: Mapping[str, object]) -> CacheLayout:
    """What a row of the model keeps, told from the content of config.json.

    Raises ConfigError when even a guess needs a number that is not there.
    """
    config = model_config(fields)
    if fields.get("model_type") in ENCODERS:
        return CacheLayout.of((), layers=_layers(config), at_once=True)
    family = _FAMILIES.get(architecture_of(fields))
    if family is not None:
        try:
            return CacheLayout.of(family(config), layers=_layers(config))
        except ConfigError:
            # A variant that says it in another way: what can be known of any transformer still holds.
            pass
    return CacheLayout.of(_guess(config), layers=_layers(config), known=False)


def _guess(config: Config) -> Iterable[Part]:
    """Everything seen by every layer: no known architecture keeps more for the same heads."""
    if config.optional("kv_lora_rank"):
        return [Keys(_largest(config))] * config.layers
    return attention.full(config)


def _largest(config: Config) -> int:
    try:
        (keys, *_) = attention.latent_unfolded(config)
    except ConfigError:
        return attention.width(config)
    return keys.width if isinstance(keys, Keys) else attention.width(config)


def _layers(config: Config) -> int:
    try:
        return config.layers
    except ConfigError:
        pattern = config.text("hybrid_override_pattern")
        count = len(pattern) if pattern else config.count("hybrid_override_pattern")
        found = count or config.count("layers_block_type") or config.count("layer_types")
        if not found:
            raise
        return found


def _architectures(fields: Mapping[str, object]) -> list[object]:
    names = fields.get("architectures")
    return names if isinstance(names, list) else []

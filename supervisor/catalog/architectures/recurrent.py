"""Models with layers that keep a state of fixed size instead of keys and values.

Source: `make_cache` and the mixers of each model in `mlx_lm/models/`; what is float32 there is float32 here.
"""

from collections.abc import Iterable

from supervisor.catalog.architectures.attention import FULL, SLIDING, latent_width, width
from supervisor.catalog.architectures.config import Config
from supervisor.catalog.architectures.parts import Keys, Part, State


def selective(config: Config) -> Iterable[Part]:
    """Mamba: a convolution's last inputs and a state for each channel."""
    return [_selective_state(config, config.whole("intermediate_size", "d_inner"))] * config.layers


def selective_between_attention(config: Config) -> Iterable[Part]:
    """Mamba layers with attention at every `attn_layer_period`-th."""
    period = max(1, config.whole("attn_layer_period"))
    offset = config.whole("attn_layer_offset")
    types = config.texts("layers_block_type") or [
        "attention" if layer % period == offset else "mamba" for layer in range(config.layers)
    ]
    inner = config.whole("mamba_expand") * config.hidden
    return [Keys(width(config)) if kind == "attention" else _selective_state(config, inner) for kind in types]


def _selective_state(config: Config, inner: int) -> State:
    kernel = config.whole("conv_kernel", "mamba_d_conv", "d_conv")
    size = config.whole("state_size", "mamba_d_state", "d_state")
    # The recurrence multiplies with exp(A), and checkpoints keep A in float32.
    return State((kernel - 1) * inner, inner * size)


def duality(config: Config) -> Iterable[Part]:
    """Mamba 2 alone."""
    return [_duality_state(config, heads="num_heads", dim="head_dim", groups="n_groups")] * config.layers


def duality_by_layer_type(config: Config) -> Iterable[Part]:
    """Mamba 2 or attention, as `layer_types` says."""
    for kind in config.texts("layer_types") or []:
        if kind == "mamba":
            yield _duality_state(config, heads="mamba_n_heads", dim="mamba_d_head", groups="mamba_n_groups")
        elif kind == "attention":
            yield Keys(width(config))


def duality_beside_attention(config: Config) -> Iterable[Part]:
    """Both in every layer."""
    heads, dim = config.whole("mamba_n_heads"), config.whole("mamba_d_head")
    inner = config.whole("mamba_d_ssm", default=heads * dim)
    size = config.whole("mamba_d_state")
    conv = inner + 2 * config.whole("mamba_n_groups") * size
    state = State((config.whole("mamba_d_conv") - 1) * conv, heads * dim * size)
    return [state, Keys(width(config))] * config.layers


_LETTERS = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "conv": "M",
}


def duality_by_letter(config: Config) -> Iterable[Part]:
    """`hybrid_override_pattern` has a letter a block: M for Mamba 2, * for attention; others keep nothing."""
    names = config.texts("layers_block_type") or config.texts("layer_types") or []
    letters = config.text("hybrid_override_pattern") or config.texts("hybrid_override_pattern")
    for letter in letters or [_LETTERS.get(name, "-") for name in names]:
        if letter == "M":
            yield _duality_state(config, heads="mamba_num_heads", dim="mamba_head_dim", groups="n_groups")
        elif letter == "*":
            yield Keys(width(config))


def _duality_state(config: Config, *, heads: str, dim: str, groups: str) -> State:
    inner = config.whole(heads) * config.whole(dim)
    size = config.whole("ssm_state_size", "state_size", "mamba_d_state")
    conv = inner + 2 * config.whole(groups) * size
    return State((config.whole("conv_kernel", "mamba_d_conv") - 1) * conv, inner * size)


def duality_between_attention(config: Config) -> Iterable[Part]:
    """Mamba 2 without groups, with attention once every `mamba_step` layers."""
    step = config.whole("mamba_step")
    inner = config.whole("mamba_num_heads") * config.head_dim
    state = State((config.whole("mamba_d_conv") - 1) * inner, inner * config.whole("mamba_d_state"))
    layers = config.layers
    for layer in range(layers):
        attends = layer == layers - 1 if layers <= step // 2 else layer % max(1, step) == step // 2
        if attends or not config.flag("mamba_enabled", default=True):
            yield Keys(width(config))
        else:
            yield state


def short_convolutions(config: Config) -> Iterable[Part]:
    """Gated short convolutions, attention where `full_attn_idxs` or `layer_types` say."""
    types = config.texts("layer_types") or []
    attending = config.wholes("full_attn_idxs") or [at for at, kind in enumerate(types) if kind == FULL]
    state = State((config.whole("conv_L_cache") - 1) * config.hidden)
    head_dim = config.hidden // config.heads
    return [
        Keys(2 * config.kv_heads * head_dim) if layer in attending else state
        for layer in range(config.layers)
    ]


def convolved_mixers(config: Config) -> Iterable[Part]:
    """Attention, windows, and mixers that keep the last keys and values of a convolution."""
    state = State((config.whole("conv_L_cache", default=3) - 1) * width(config))
    for kind in config.texts("layer_types") or [FULL] * config.layers:
        if kind == FULL:
            yield Keys(width(config))
        elif kind == SLIDING:
            yield Keys(width(config), config.whole("sliding_window", default=512))
        else:
            yield state


def gated_delta(config: Config) -> Iterable[Part]:
    """Gated DeltaNet, with attention every `full_attention_interval` layers."""
    interval = max(1, config.whole("full_attention_interval", default=4))
    state = _delta_state(config)
    return [Keys(width(config)) if layer % interval == 0 else state for layer in range(1, config.layers + 1)]


def gated_delta_by_layer_type(config: Config) -> Iterable[Part]:
    types = config.texts("layer_types") or [
        FULL if layer % 4 == 3 else "linear_attention" for layer in range(config.layers)
    ]
    state = _delta_state(config)
    return [state if kind == "linear_attention" else Keys(width(config)) for kind in types]


def _delta_state(config: Config) -> State:
    keys, values = config.whole("linear_key_head_dim"), config.whole("linear_value_head_dim")
    key_heads, value_heads = config.whole("linear_num_key_heads"), config.whole("linear_num_value_heads")
    conv = 2 * key_heads * keys + value_heads * values
    return State((config.whole("linear_conv_kernel_dim") - 1) * conv, value_heads * values * keys)


def delta_and_latent(config: Config) -> Iterable[Part]:
    """Kimi's delta attention in the layers that `linear_attn_config` counts from 1, latent attention else."""
    linear = config.part("linear_attn_config")
    counted = set(linear.wholes("kda_layers") or [])
    heads, dim = linear.whole("num_heads"), linear.whole("head_dim")
    kernel = linear.whole("short_conv_kernel_size", default=4)
    state = State(3 * (kernel - 1) * heads * dim, heads * dim * dim)
    return [
        state if layer in counted else Keys(latent_width(config)) for layer in range(1, config.layers + 1)
    ]


def delta_between_latent(config: Config) -> Iterable[Part]:
    """The same kind of state, with latent attention at the end of every `layer_group_size` layers."""
    projection = config.heads * config.head_dim
    kernel = config.whole("short_conv_kernel_size")
    state = State(3 * (kernel - 1) * projection, projection * config.head_dim)
    return [Keys(latent_width(config)) if last else state for last in _last_of_group(config)]


def lightning_between_latent(config: Config) -> Iterable[Part]:
    """Lightning attention with a float32 state, latent attention at the end of every group."""
    state = State(0, config.heads * config.head_dim**2)
    return [Keys(latent_width(config)) if last else state for last in _last_of_group(config)]


def lightning_between_attention(config: Config) -> Iterable[Part]:
    state = State(config.heads * config.head_dim**2)
    return [Keys(width(config)) if last else state for last in _last_of_group(config)]


def _last_of_group(config: Config) -> list[bool]:
    """Whether a layer ends a group; those after the last whole group do too."""
    size, layers = max(1, config.whole("layer_group_size")), config.layers
    return [(layer + 1) % size == 0 or layer >= layers // size * size for layer in range(layers)]


def time_mixing(config: Config) -> Iterable[Part]:
    """RWKV: the last token twice, and a matrix for each head."""
    return [State(2 * config.hidden + config.hidden * config.head_dim)] * config.layers


def linear_recurrence(config: Config) -> Iterable[Part]:
    """Real-gated linear recurrences and local attention with one key head, as `block_types` repeats."""
    types = config.texts("block_types") or config.texts("_block_types") or ["recurrent"]
    lru = config.optional("lru_width") or config.hidden
    state = State((config.whole("conv1d_width", default=4) - 1) * lru + lru)
    window = config.whole("attention_window_size")
    keys = Keys(2 * (config.hidden // config.heads), window)
    return [state if types[layer % len(types)] == "recurrent" else keys for layer in range(config.layers)]

"""Models whose layers all attend: what each keeps, by the way their configurations say it.

Source: `make_cache` and the attention of each model in `mlx_lm/models/`.
"""

from collections.abc import Iterable, Sequence

from supervisor.catalog.architectures.config import Config
from supervisor.catalog.architectures.parts import Keys, Part, State

FULL = "full_attention"
SLIDING = "sliding_attention"


def width(config: Config) -> int:
    """Elements of one token's key and value with grouped queries."""
    return 2 * config.kv_heads * config.head_dim


def full(config: Config) -> Iterable[Part]:
    """Every layer sees everything."""
    return [Keys(width(config))] * config.layers


def one_kv_head(config: Config) -> Iterable[Part]:
    """Multi-query attention unless the configuration says otherwise."""
    heads = 1 if config.flag("multi_query", default=True) else config.heads
    return [Keys(2 * heads * config.head_dim)] * config.layers


def nested_attention(config: Config) -> Iterable[Part]:
    """The number of key heads is in `attn_config`."""
    heads = config.part("attn_config").whole("kv_n_heads")
    return [Keys(2 * heads * config.head_dim)] * config.layers


def heads_by_layer(config: Config) -> Iterable[Part]:
    """`num_kv_heads` is a list, one a layer."""
    heads = config.wholes("num_kv_heads") or []
    return [Keys(2 * count * config.head_dim) for count in heads]


def shared_heads(config: Config) -> Iterable[Part]:
    """`n_shared_head` query heads share a key head."""
    heads = -(-config.heads // max(1, config.whole("n_shared_head", default=8)))
    return [Keys(2 * heads * config.head_dim)] * config.layers


def searched_blocks(config: Config) -> Iterable[Part]:
    """A searched architecture: each block of `block_configs` has its own attention, or none."""
    for block in config.parts("block_configs"):
        attention = block.part("attention")
        if attention.flag("no_op", default=False) or attention.flag("replace_with_linear", default=False):
            continue
        heads = config.heads // max(1, attention.whole("n_heads_in_group"))
        yield Keys(2 * heads * config.head_dim)


def looped(config: Config) -> Iterable[Part]:
    """The stack of layers is run several times, and every time keeps its own."""
    # Trained with a loss at every run, a checkpoint has a weight for each run but the last.
    extra = config.count("loop_loss_weights")
    loops = extra + 1 if extra else max(1, config.whole("num_loops", default=1))
    return [Keys(width(config))] * (config.layers * loops)


def second_loop_in_window(config: Config) -> Iterable[Part]:
    """Two runs through the stack, of which the second sees a window."""
    window = config.whole("loop_window_size", default=64)
    return [Keys(width(config)), Keys(width(config), window)] * config.layers


def reused_by_last(config: Config) -> Iterable[Part]:
    """The last `num_kv_reuse_layers` layers read what the layer before them keeps."""
    keeping = config.layers - config.whole("num_kv_reuse_layers", default=0)
    return [Keys(width(config))] * max(0, keeping)


def by_layer_type(config: Config, *, pattern: Sequence[str], window: int | None = None) -> Iterable[Part]:
    """`layer_types` tells which layers see a window; `pattern` repeats where it is missing."""
    types = config.texts("layer_types") or repeated(pattern, config.layers)
    size = config.whole("sliding_window", default=window)
    return [Keys(width(config), size if kind == SLIDING else None) for kind in types]


def all_full_unless_said(config: Config) -> Iterable[Part]:
    """Windows only where `layer_types` names them: a bare `sliding_window` is not used."""
    if SLIDING not in (config.texts("layer_types") or ()):
        return full(config)
    return by_layer_type(config, pattern=[FULL])


def alternating(config: Config) -> Iterable[Part]:
    """Window, full, window, full."""
    return by_layer_type(config, pattern=[SLIDING, FULL], window=128)


def every_fourth_full(config: Config) -> Iterable[Part]:
    """Three layers with a window, then one that sees everything."""
    return by_layer_type(config, pattern=[SLIDING] * 3 + [FULL], window=2048)


def every_nth_full(config: Config, *, nth: int, window: int) -> Iterable[Part]:
    """`sliding_window_pattern` is the distance between layers that see everything."""
    distance = max(1, config.whole("sliding_window_pattern", default=nth))
    size = config.whole("sliding_window", "window_size", default=window)
    return [
        Keys(width(config), None if number % distance == 0 else size)
        for number in range(1, config.layers + 1)
    ]


def lettered(config: Config) -> Iterable[Part]:
    """`sliding_window_pattern` is a word such as `LLLG`: local, local, local, global."""
    pattern = config.text("sliding_window_pattern")
    if not pattern:
        return full(config)
    letters = repeated(pattern, config.layers)
    return [
        Keys(width(config), config.whole("sliding_window") if letter == "L" else None) for letter in letters
    ]


def other_heads_in_window(config: Config) -> Iterable[Part]:
    """Layers with a window have their own number of key heads, in `attention_other_setting`."""
    types = config.texts("layer_types") or repeated([SLIDING, FULL], config.layers)
    full_heads = config.whole("num_attention_groups", default=config.kv_heads)
    window_heads = config.part("attention_other_setting").whole("num_attention_groups", default=full_heads)
    size = config.whole("sliding_window", default=512)
    for kind in types[: config.layers]:
        if kind == SLIDING:
            yield Keys(2 * window_heads * config.head_dim, size)
        else:
            yield Keys(2 * full_heads * config.head_dim)


def other_dims_in_window(config: Config) -> Iterable[Part]:
    """Layers with a window have their own heads and dimensions, `swa_...`."""
    for windowed in config.wholes("hybrid_layer_pattern") or []:
        if windowed:
            dims = config.whole("swa_head_dim") + config.whole("swa_v_head_dim")
            heads = config.whole("swa_num_key_value_heads")
            yield Keys(heads * dims, config.whole("sliding_window_size"))
        else:
            yield Keys(
                config.kv_heads * (config.head_dim + config.whole("v_head_dim", default=config.head_dim))
            )


def last_layers_share(config: Config) -> Iterable[Part]:
    """The last `num_kv_shared_layers` layers keep nothing of their own."""
    keeping = config.layers - config.whole("num_kv_shared_layers", default=0)
    types = (config.texts("layer_types") or [])[: max(0, keeping)]
    size = config.whole("sliding_window")
    return [Keys(width(config), size if kind == SLIDING else None) for kind in types]


def wide_global_layers(config: Config) -> Iterable[Part]:
    """As `last_layers_share`, with another head size, and perhaps other heads, where everything is seen."""
    keeping = max(0, config.layers - config.whole("num_kv_shared_layers"))
    distance = max(1, config.whole("sliding_window_pattern"))
    types = config.texts("layer_types") or repeated([SLIDING] * (distance - 1) + [FULL], config.layers)
    global_heads = config.kv_heads
    if config.flag("attention_k_eq_v", default=False):
        global_heads = config.whole("num_global_key_value_heads", default=config.kv_heads)
    for kind in types[:keeping]:
        if kind == SLIDING:
            yield Keys(width(config), config.whole("sliding_window"))
        else:
            yield Keys(2 * global_heads * (config.optional("global_head_dim") or config.head_dim))


def chunked(config: Config) -> Iterable[Part]:
    """Three layers of four attend within chunks."""
    chunk = config.whole("attention_chunk_size")
    return [
        Keys(width(config)) if number % 4 == 0 else Keys(width(config), chunk, chunked=True)
        for number in range(1, config.layers + 1)
    ]


def convolved_keys(config: Config) -> Iterable[Part]:
    """Keys and values pass a convolution over two tokens, so the last of each is kept too."""
    windows = set(config.wholes("sliding_window_layers") or [])
    for layer in range(config.layers):
        if layer in windows:
            heads = config.optional("num_swa_attention_heads") or config.heads
            kv_heads = config.optional("num_swa_key_value_heads") or config.kv_heads
            size: int | None = config.whole("sliding_window")
        else:
            heads, kv_heads, size = config.heads, config.kv_heads, None
        token = 2 * kv_heads * (config.hidden // heads)
        yield Keys(token, size)
        yield State(token)


def latent(config: Config) -> Iterable[Part]:
    """Multi-head latent attention: one compressed vector and one rotated key for all heads."""
    return [Keys(latent_width(config))] * config.layers


def latent_width(config: Config) -> int:
    return config.whole("kv_lora_rank") + config.whole("qk_rope_head_dim", default=0)


def latent_twice(config: Config) -> Iterable[Part]:
    """Two attentions a layer."""
    return [Keys(latent_width(config))] * (2 * config.layers)


def latent_indexed(config: Config) -> Iterable[Part]:
    """An index key chooses what is attended to; its cache keeps as much again for values it has not."""
    both = latent_width(config) + 2 * config.whole("index_head_dim")
    return [Keys(both)] * config.layers


def latent_unfolded(config: Config) -> Iterable[Part]:
    """Latent attention whose keys and values are kept as every head sees them."""
    keys = config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim")
    values = config.whole("v_head_dim", default=config.hidden // config.heads)
    return [Keys(config.heads * (keys + values))] * config.layers


def block_indexed(config: Config) -> Iterable[Part]:
    """Layers with sparse attention keep an index key beside keys and values."""
    sparse = config.part("sparse_attention_config")
    index = sparse.optional("sparse_index_dim") or config.optional("index_head_dim") or 0
    frequencies = sparse.wholes("sparse_attention_freq") or config.wholes("sparse_attention_freq")
    types = config.texts("layer_types")
    blocks = sparse.has("sparse_block_size") or config.has("index_block_size")
    for layer in range(config.layers):
        if types is not None and layer < len(types):
            sparsely = types[layer] != FULL
        else:
            sparsely = frequencies is None or layer >= len(frequencies) or bool(frequencies[layer])
        yield Keys(width(config) + (index if blocks and sparsely else 0))


def repeated(pattern: Sequence[str], layers: int) -> list[str]:
    """`pattern` over and over, `layers` long."""
    return [pattern[layer % len(pattern)] for layer in range(layers)]

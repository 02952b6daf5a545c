"""What rows keep, for configurations as their models publish them and as nobody should."""

from typing import Any

import pytest

from supervisor.catalog.architectures import CacheLayout, ConfigError, Keys, State, architecture_of, layout_of

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
QWEN_3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def test_grouped_queries() -> None:
    """8 heads of 128, keys and values, 32 layers, 2 bytes: the 128 KiB a token that everybody quotes."""
    layout = layout_of(LLAMA_3_8B)
    assert layout.known
    assert layout.keys_bytes(8192) == 8192 * 128 * 1024
    assert layout.keys_bytes(8192, rows=4) == 4 * 8192 * 128 * 1024
    assert layout.keys_bytes(8192, itemsize=4) == 2 * 8192 * 128 * 1024
    assert layout.state_bytes() == 0


def test_caches_grow_in_steps() -> None:
    layout = layout_of(LLAMA_3_8B)
    assert layout.keys_bytes(1) == layout.keys_bytes(256) < layout.keys_bytes(257) == layout.keys_bytes(512)


def test_windows_stop_growing() -> None:
    """Five layers of six keep 1,024 tokens however long the text is."""
    layout = layout_of(GEMMA_3_27B)
    token = 2 * 16 * 128 * 2
    assert layout.keys_bytes(131_072) == token * (10 * 131_072 + 52 * 1024)
    assert not layout.bounded


def test_windows_hold_a_piece_of_prompt_too() -> None:
    """While a prompt is computed in pieces of 512, a ring of 1,024 holds 1,023 tokens and the piece."""
    layout = layout_of(GEMMA_3_27B)
    token = 2 * 16 * 128 * 2
    assert layout.prefill_bytes(131_072, 512) == token * 52 * 511
    assert layout_of(LLAMA_3_8B).prefill_bytes(131_072, 512) == 0


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    assert layout_of(DEEPSEEK_V3).keys_bytes(4096) == 4096 * 61 * (512 + 64) * 2


def test_hybrids_keep_states_and_few_keys() -> None:
    layout = layout_of(QWEN_3_NEXT)
    assert layout.keys_bytes(4096) == 4096 * 12 * 2 * 2 * 256 * 2
    # 36 layers: a convolution's three last inputs in the model's own type, and a float32 state.
    assert layout.state_bytes() == 36 * (3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4)


def test_pure_recurrence_does_not_grow() -> None:
    config = {
        "model_type": "mamba2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 32,
        "n_groups": 1,
        "state_size": 16,
        "conv_kernel": 4,
    }
    layout = layout_of(config)
    assert layout.bounded and layout.keys_bytes(100_000) == 0 < layout.state_bytes()


def test_a_window_that_no_layer_uses_is_no_window() -> None:
    """Mistral's configurations name a window that mlx-lm does not apply without layer types."""
    assert layout_of({**LLAMA_3_8B, "model_type": "mistral", "sliding_window": 4096}) == layout_of(LLAMA_3_8B)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}, "ministral3"),
        ({"model_type": "pixtral", "text_config": {}}, "llama"),
        ({"model_type": "new_vision", "text_config": {"model_type": "qwen3"}}, "qwen3"),
        ({"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}, "bailing_moe_v3"),
        ({"model_type": 7}, ""),
        ({}, ""),
    ],
)
def test_names_of_architectures(fields: dict[str, object], name: str) -> None:
    assert architecture_of(fields) == name


def test_an_unknown_architecture_gets_a_careful_guess() -> None:
    guess = layout_of({**GEMMA_3_27B["text_config"], "model_type": "gemma9"})  # type: ignore[dict-item]
    assert not guess.known
    assert guess.keys_bytes(131_072) == 131_072 * 62 * 2 * 16 * 128 * 2


def test_a_guess_at_latent_attention_unfolds_it() -> None:
    """Some models keep what every head sees; one that we don't know may be one of them."""
    guess = layout_of({**DEEPSEEK_V3, "model_type": "deepseek_v9"})
    assert not guess.known
    assert guess.keys_bytes(256) == 256 * 61 * 128 * (128 + 64 + 128) * 2


def test_a_known_architecture_with_a_field_missing_is_guessed() -> None:
    without = {name: value for name, value in QWEN_3_NEXT.items() if name != "linear_key_head_dim"}
    assert not layout_of(without).known


HOSTILE: list[dict[str, Any]] = [
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": -3},
    {"num_hidden_layers": "32"},
    {"num_hidden_layers": True},
    {"hidden_size": 10**30},
    {"num_attention_heads": None, "n_head": None},
]


@pytest.mark.parametrize("change", HOSTILE, ids=str)
def test_absurd_numbers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        layout_of({**LLAMA_3_8B, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"layer_types": 5},
        {"layer_types": [1, None, {}]},
        {"text_config": 3},
        {"head_dim": 0},
        {"num_key_value_heads": None},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model_type", ["llama", "gemma3_text", "gpt_oss", "qwen3_next", "nemotron_h", "lfm2"]
)
def test_odd_values_break_nothing(model_type: str, change: dict[str, Any]) -> None:
    fields = {**LLAMA_3_8B, "model_type": model_type, **change}
    try:
        layout = layout_of(fields)
    except ConfigError:
        return
    assert layout.keys_bytes(1000) >= 0


def test_equal_layers_are_counted_together() -> None:
    layout = CacheLayout.of([Keys(8), State(3, 2), Keys(8), Keys(8, 16), Keys(0)], layers=4)
    assert [(group.count, group.keys) for group in layout.grows] == [(2, Keys(8)), (1, Keys(8, 16))]
    assert layout.state_bytes(rows=2, itemsize=2) == 2 * (3 * 2 + 2 * 4)

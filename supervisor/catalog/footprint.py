"""How many bytes a worker will hold for a model: weights, what its rows keep, and room to compute.

`read_size` looks at a folder once; everything else is arithmetic on what it found.
"""

from pathlib import Path
from typing import Final

import msgspec

from shared.limits import SHARE_FOR_FLOAT32
from supervisor.catalog.architectures import (
    HEADS,
    HIDDEN,
    CacheLayout,
    Config,
    ConfigError,
    architecture_of,
    layout_of,
    model_config,
)
from supervisor.catalog.machine import Machine
from supervisor.catalog.tensors import WeightsError, read_tensors
from supervisor.catalog.weights import Weights, expert_share, weigh

PROCESS_BYTES: Final = 192 * 2**20
"""Interpreter, libraries, tokenizer and buffers of a worker, without its arrays."""

_MOST_PROMPTS: Final = 8
_SMALLEST_CHUNK: Final = 32
"""A worker computes up to so many prompts at once, each at least so many tokens a step."""

_MIN_SLACK_BYTES: Final = 32 * 2**20
_SLACK_OF_WEIGHTS: Final = 0.01
_SLACK_OF_KEYS: Final = 0.125
"""What allocators hold beyond what was asked for: whole pages, a cache's old copy while it grows, buffers
kept for the next step. MLX gives freed buffers back by itself before it runs out of memory."""

_FUSED_HEAD_DIMS: Final = frozenset({64, 80, 128})
"""Head sizes for which Metal's attention over a prompt never writes its scores to memory."""

_HIDDEN_COPIES: Final = 4
_INTERMEDIATE_COPIES: Final = 3
_ROUTED_COPIES: Final = 2
"""Arrays of that width that one layer holds at its peak, measured with mlx's CPU backend."""

_GPU_LAYERS_IN_FLIGHT: Final = 4
"""Layers whose arrays a GPU holds at once, because their kernels are queued before the first has run. With
it the estimates meet the peaks in mlx-lm's BENCHMARKS.md."""

_MAX_CONFIG_BYTES: Final = 32 << 20


class SizeError(Exception):
    """Raised when a folder does not tell how large its model is; the message is a sentence without paths."""


class Shape(msgspec.Struct, frozen=True):
    """The widths that the working memory of a prompt depends on, in elements."""

    hidden: int
    intermediate: int
    """Of the feed-forward part that one token takes, all its experts together."""
    heads: int
    head_dim: int
    vocabulary: int
    routed: int = 0
    """Of the copies of a token that go to its experts."""
    unfolded: int = 0
    """Latent attention unfolds what it keeps, so wide for each token of a row, while it computes a prompt."""


class ModelSize(msgspec.Struct, frozen=True):
    """All that is known of a model's size before it is loaded."""

    architecture: str
    weights: Weights
    layout: CacheLayout
    shape: Shape
    context: int | None = None
    """Tokens that it was made for."""


class Demand(msgspec.Struct, frozen=True):
    """What shall be possible at once: `rows` rows with `context` tokens each, prompt and completion."""

    context: int
    rows: int = 1
    prefill_step: int = 512
    prompt_cache_bytes: int = 0
    """What the worker may keep of earlier prompts."""
    adapters_bytes: int = 0
    """LoRA adapters that are mounted beside the weights."""
    draft: ModelSize | None = None
    """The model that proposes what this one says."""


class Parts(msgspec.Struct, frozen=True):
    """Bytes of one worker, part by part."""

    weights_bytes: int
    adapters_bytes: int
    draft_bytes: int
    """Weights of the draft, and what it keeps of the one row that it reads."""
    kv_bytes: int
    """Keys and values of all rows at their full length."""
    state_bytes: int
    """Fixed state of all rows: recurrent and convolutional layers."""
    working_bytes: int
    """Peak of what is computed and dropped again: a piece of a prompt, logits, unpacking at the load."""
    prompt_cache_bytes: int
    slack_bytes: int
    process_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, name) for name in self.__struct_fields__)


def read_size(folder: Path) -> ModelSize:
    """What the model in `folder` comes to. Reads config.json and headers alone.

    Raises SizeError.
    """
    fields = _read_config(folder / "config.json")
    try:
        weights = weigh(read_tensors(folder), fields)
        layout = layout_of(fields)
    except WeightsError as error:
        raise SizeError(str(error)) from None
    except ConfigError as error:
        raise SizeError(f"its {error}") from None
    config = model_config(fields)
    return ModelSize(architecture_of(fields), weights, layout, _shape(config), config.context)


def _read_config(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise SizeError("its config.json is far too large")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise SizeError(f"its config.json can't be read: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError):
        raise SizeError("its config.json is not a valid JSON object") from None


def _shape(config: Config) -> Shape:
    hidden = config.whole(*HIDDEN, default=0)
    dense = config.whole("intermediate_size", "ffn_hidden_size", "n_inner", default=4 * hidden)
    expert = config.optional("moe_intermediate_size", "expert_ffn_hidden_size") or dense
    chosen = config.optional(
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_top_k"
    )
    heads = config.whole(*HEADS, default=0)
    unfolded = 0
    if config.optional("kv_lora_rank"):
        unfolded = heads * (config.optional("qk_nope_head_dim") or 0)
        unfolded += heads * (config.optional("v_head_dim") or 0)
    there = expert_share(config) < 1
    return Shape(
        hidden=hidden,
        intermediate=max(dense, (chosen or 0) * expert) if there else dense,
        routed=(chosen or 0) * hidden if there else 0,
        heads=heads,
        head_dim=config.optional("head_dim") or (hidden // heads if heads else 0),
        vocabulary=config.whole("vocab_size", default=0),
        unfolded=unfolded,
    )


def unpacks(size: ModelSize, machine: Machine) -> bool:
    """Whether a worker on this machine will turn the weights into float32."""
    if machine.backend != "cpu":
        return False
    free = machine.memory_bytes if machine.available_bytes is None else machine.available_bytes
    return size.weights.unpacked_bytes <= SHARE_FOR_FLOAT32 * free


def estimate(size: ModelSize, machine: Machine, demand: Demand) -> Parts:
    """Bytes of one worker with this model on this machine while it does what is demanded."""
    widened = unpacks(size, machine)
    itemsize = 4 if widened else size.weights.activation_bytes
    weights = size.weights.unpacked_bytes if widened else size.weights.packed_bytes
    rows, context = demand.rows, demand.context
    keys = size.layout.keys_bytes(context, rows=rows, itemsize=itemsize)
    working = _working_bytes(size, machine, demand, itemsize)
    if widened:
        # Matrices are unpacked one after the other, through an array as large as the largest.
        working = max(working, 4 * size.weights.largest_parameters)
    return Parts(
        weights_bytes=weights,
        adapters_bytes=demand.adapters_bytes,
        draft_bytes=_draft_bytes(machine, demand),
        kv_bytes=keys,
        state_bytes=size.layout.state_bytes(rows=rows, itemsize=itemsize),
        working_bytes=working,
        prompt_cache_bytes=demand.prompt_cache_bytes,
        slack_bytes=max(_MIN_SLACK_BYTES, int(weights * _SLACK_OF_WEIGHTS + keys * _SLACK_OF_KEYS)),
        process_bytes=PROCESS_BYTES,
    )


def _draft_bytes(machine: Machine, demand: Demand) -> int:
    if demand.draft is None:
        return 0
    parts = estimate(demand.draft, machine, Demand(context=demand.context))
    return parts.weights_bytes + parts.kv_bytes + parts.state_bytes


def _working_bytes(size: ModelSize, machine: Machine, demand: Demand, itemsize: int) -> int:
    """Peak of the arrays of one layer while a piece of prompt is computed, and the logits of a step."""
    shape, rows = size.shape, demand.rows
    tokens = min(max(demand.prefill_step, _SMALLEST_CHUNK * min(rows, _MOST_PROMPTS)), demand.context * rows)
    if size.layout.at_once:
        tokens = max(tokens, demand.context)
    seen = size.layout.tokens_seen(demand.context, demand.prefill_step)
    width = _HIDDEN_COPIES * shape.hidden + _INTERMEDIATE_COPIES * shape.intermediate
    width += _ROUTED_COPIES * shape.routed
    on_gpu = machine.backend != "cpu"
    activations = tokens * width * itemsize * (_GPU_LAYERS_IN_FLIGHT if on_gpu else 1)
    fused = on_gpu and shape.head_dim in _FUSED_HEAD_DIMS and not shape.unfolded
    # Without scores there is still the mask, a byte for each.
    scores = tokens * seen * (1 if fused else shape.heads * itemsize)
    unfolded = seen * shape.unfolded * itemsize
    windows = size.layout.prefill_bytes(demand.context, demand.prefill_step, rows=rows, itemsize=itemsize)
    logits = 3 * rows * shape.vocabulary * 4
    return activations + scores + unfolded + windows + logits


def largest_context(size: ModelSize, machine: Machine, demand: Demand, budget_bytes: int, limit: int) -> int:
    """Most tokens a row, up to `limit`, with which the total stays within the budget; 0 if there is none."""

    def total(context: int) -> int:
        return estimate(size, machine, msgspec.structs.replace(demand, context=context)).total_bytes

    if limit < 1 or total(1) > budget_bytes:
        return 0
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        if total(middle) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low

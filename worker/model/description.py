"""What a model folder says about the model: context window, sampling defaults, end tokens."""

import json
from pathlib import Path
from typing import Any

from shared.encoders import positions_before_text
from shared.launch import Sampling
from shared.limits import LENGTH_KEYS, UNBOUNDED_CONTEXT
from shared.model_files import GENERATION, generation_defaults


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when there is no such file or no object in it."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def context_window(config: dict[str, Any], limit: int | None) -> int:
    """Tokens of prompt and completion together: the model's own, or `limit` if that is less."""
    own = UNBOUNDED_CONTEXT
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            named = [part[name] for name in LENGTH_KEYS if isinstance(part.get(name), int) and part[name] > 0]
            if named:
                own = named[0] - positions_before_text(part)
                break
    return own if limit is None else min(own, limit)


def logits_width(config: dict[str, Any]) -> int:
    """Token ids that the model knows go from 0 up to, and not including, this."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(size := part.get("vocab_size"), int) and size > 0:
            return size
    return 2**31


def attention_heads(config: dict[str, Any]) -> int:
    """Heads of one layer that compare tokens with each other; 0 where the model does not say."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(heads := part.get("num_attention_heads"), int) and heads > 0:
            return heads
    return 0


def sampling_defaults(directory: Path) -> Sampling:
    """The sampling values of generation_config.json that are usable; none when there is no such file."""
    return generation_defaults(read_json(directory / GENERATION))

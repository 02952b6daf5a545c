"""What a model folder says about the model: context window, sampling defaults, end tokens."""

import json
from pathlib import Path
from typing import Any

from shared.encoders import positions_before_text
from shared.launch import Sampling
from shared.limits import LENGTH_KEYS, UNBOUNDED_CONTEXT


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


def sampling_defaults(directory: Path) -> Sampling:
    """The sampling values of generation_config.json that are usable; none when there is no such file."""
    found = read_json(directory / "generation_config.json")

    def number(name: str, low: float, high: float) -> Any:
        value = found.get(name)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return value if usable else None

    def whole(name: str, low: int) -> int | None:
        value = number(name, low, 2**31 - 1)
        return None if value is None else int(value)

    return Sampling(
        temperature=number("temperature", 0, 2),
        top_p=number("top_p", 0, 1),
        top_k=whole("top_k", 0),
        min_p=number("min_p", 0, 1),
        xtc_probability=number("xtc_probability", 0, 1),
        xtc_threshold=number("xtc_threshold", 0, 0.5),
        repetition_penalty=number("repetition_penalty", 0.01, 10),
        repetition_context_size=whole("repetition_context_size", 1),
        presence_penalty=number("presence_penalty", -2, 2),
        presence_context_size=whole("presence_context_size", 1),
        frequency_penalty=number("frequency_penalty", -2, 2),
        frequency_context_size=whole("frequency_context_size", 1),
    )

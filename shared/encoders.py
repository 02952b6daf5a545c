"""Encoders, the models that read a text whole and only make vectors of it: what both sides know of them."""

from collections.abc import Mapping
from typing import Final

ENCODERS: Final = frozenset({"bert", "camembert", "modernbert", "roberta", "xlm-roberta"})
"""Those that a worker can run, by `model_type` of config.json."""

_COUNT_FROM_PADDING: Final = frozenset({"camembert", "roberta", "xlm-roberta"})


def positions_before_text(config: Mapping[str, object]) -> int:
    """Positions of `max_position_embeddings` that no token of a text has.

    Source: transformers' RoBERTa, whose positions are counted from behind that of the padding token.
    """
    if config.get("model_type") not in _COUNT_FROM_PADDING:
        return 0
    padding = config.get("pad_token_id")
    return (padding if isinstance(padding, int) and padding >= 0 else 1) + 1

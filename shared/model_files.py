"""What a model folder says of itself, as both sides read it."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from shared.launch import Sampling

# Source: the vocabularies of the model families; the first pair that is there as tokens counts.
THINKING_PAIRS: Final = (
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)

GENERATION: Final = "generation_config.json"
"""The model's own sampling."""
_SENTENCE_TRANSFORMERS: Final = ("modules.json", "config_sentence_transformers.json", "1_Pooling")
_NAMED_PARTS: Final = 4
"""Parts of the path's end that may name the model: in the hub's cache its name is three above the files."""


def declares_embeddings(folder: Path, names: Container[str], config: Mapping[str, object]) -> bool:
    """Whether the folder says that its model was made for embeddings.

    Any decoder has hidden states, but only those of a model that was trained for it mean something as
    vectors. So it must be said: by the files of sentence-transformers, by a headless architecture, or by its
    name. `names` are those of the files and folders in it, `config` is the content of config.json.
    """
    architectures = config.get("architectures")
    architectures = architectures if isinstance(architectures, list) else []
    return (
        any(name in names for name in _SENTENCE_TRANSFORMERS)
        or any(str(name).endswith("Model") for name in architectures)
        or any("embed" in part.lower() for part in folder.parts[-_NAMED_PARTS:])
    )


def generation_defaults(found: Mapping[str, object]) -> Sampling:
    """The values in the content of generation_config.json that are usable."""

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

"""What a model folder says of itself, as both sides read it."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final

# Source: the vocabularies of the model families; the first pair that is there as tokens counts.
THINKING_PAIRS: Final = (
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)

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

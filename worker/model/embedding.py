"""Whether a model folder says that it holds an embedding model, and what it says about its vectors.

Any decoder has hidden states, but only those of a model that was trained for it mean something as vectors. So
a folder must declare it: by the files of sentence-transformers, by a headless architecture, or by its name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, cast

import mlx.core as mx
import msgspec

from shared.status import FailureKind
from worker.model.description import read_json
from worker.model.failures import LoadError

Pooling = Literal["last", "mean"]

_NAMED_PARTS: Final = 4
"""Parts of the path's end that may name the model: in the hub's cache its name is three above the files."""
_ENCODERS: Final = frozenset(
    {"bert", "distilbert", "modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta"}
)


class Embedding(msgspec.Struct, frozen=True):
    """How vectors are made. `prompts`, by kind of text such as `query`, come before texts of that kind."""

    size: int
    """Numbers in a vector."""
    pooling: Pooling = "last"
    prompts: dict[str, str] = {}


def embedding_of(directory: Path, config: dict[str, Any]) -> Embedding | None:
    """None for a model that does not declare it. Raises LoadError for one that can't be run."""
    declared = (
        (directory / "modules.json").is_file()
        or (directory / "config_sentence_transformers.json").is_file()
        or (directory / "1_Pooling" / "config.json").is_file()
        or any(str(name).endswith("Model") for name in config.get("architectures") or ())
        or any("embed" in part.lower() for part in directory.parts[-_NAMED_PARTS:])
    )
    if not declared:
        return None
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"embedding models of type {config.get('model_type')} that read both ways are not supported",
        )
    pooling = _pooling(read_json(directory / "1_Pooling" / "config.json"))
    prompts = read_json(directory / "config_sentence_transformers.json").get("prompts")
    if not isinstance(prompts, dict):
        prompts = {}
    size = config.get("hidden_size") or (config.get("text_config") or {}).get("hidden_size")
    if not isinstance(size, int):
        raise LoadError(FailureKind.UNSUPPORTED, "config.json does not say how long the vectors are")
    return Embedding(
        size, pooling, {str(kind): text for kind, text in prompts.items() if isinstance(text, str)}
    )


def check_architecture(config: dict[str, Any]) -> None:
    """Raises LoadError for encoders, which mlx-lm has no code for."""
    kind = config.get("model_type")
    if kind in _ENCODERS:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"encoder models such as this one ({kind}) are not supported; embedding models with a decoder "
            "such as Qwen3-Embedding are",
        )


def _pooling(found: dict[str, Any]) -> Pooling:
    if found.get("pooling_mode_mean_tokens"):
        return "mean"
    for mode in ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"):
        if found.get(f"pooling_mode_{mode}"):
            raise LoadError(FailureKind.UNSUPPORTED, f"pooling by {mode} is not supported")
    return "last"


def headless(directory: Path) -> bool:
    """Whether the weights are those of the model without its head, as embedding models are published."""
    files = directory.glob("model*.safetensors")
    names = {str(name) for path in files for name in cast(dict[str, Any], mx.load(str(path)))}
    return bool(names) and not any(name.startswith(("model.", "lm_head.")) for name in names)


def classes_for_headless(classes: Callable[..., Any]) -> Callable[[dict[str, Any]], tuple[Any, Any]]:
    """mlx-lm's classes for a config, but that they put the body's weights where the whole model has them."""

    def adapted(config: dict[str, Any]) -> tuple[Any, Any]:
        whole, arguments = classes(config)

        class Body(whole):  # type: ignore[misc,valid-type]
            def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
                weights = {f"model.{name}": array for name, array in weights.items()}
                sanitize = getattr(super(), "sanitize", None)
                return weights if sanitize is None else dict(sanitize(weights))

        return Body, arguments

    return adapted

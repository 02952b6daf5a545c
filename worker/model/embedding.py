"""What a model folder that declares an embedding model says about its vectors."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, cast

import mlx.core as mx
import msgspec

from shared.encoders import ENCODERS
from shared.model_files import declares_embeddings
from shared.status import FailureKind
from worker.model.description import read_json
from worker.model.failures import LoadError

Pooling = Literal["last", "mean", "cls"]

log = logging.getLogger(__name__)

_OTHER_ENCODERS: Final = frozenset(
    {"albert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "new", "nomic_bert"}
)
_CLASSIFIERS: Final = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_MODES: Final[tuple[tuple[str, Pooling], ...]] = (
    ("mean_tokens", "mean"),
    ("cls_token", "cls"),
    ("lasttoken", "last"),
)
_OTHER_MODES: Final = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")


class Embedding(msgspec.Struct, frozen=True):
    """How vectors are made. `prompts`, by kind of text such as `query`, come before texts of that kind."""

    size: int
    """Numbers in a vector."""
    pooling: Pooling = "last"
    prompts: dict[str, str] = {}
    encoder: bool = False
    """Whether the model reads a text whole and can't write."""
    normalised: bool = True
    """Whether the vectors' length is 1."""


def embedding_of(directory: Path, config: dict[str, Any]) -> Embedding | None:
    """None for a model that does not declare it. Raises LoadError for one that can't be run."""
    if config.get("model_type") in ENCODERS:
        return _encoder(directory, config)
    if not declares_embeddings(directory, os.listdir(directory), config):
        return None
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"embedding models of type {config.get('model_type')} that read both ways are not supported",
        )
    pooling = _pooling(directory) or "last"
    if pooling == "cls":
        raise LoadError(FailureKind.UNSUPPORTED, "pooling by cls_token is for models that read both ways")
    return Embedding(_size(config), pooling, _prompts(directory))


def _encoder(directory: Path, config: dict[str, Any]) -> Embedding:
    for name in config.get("architectures") or ():
        if str(name).endswith(_CLASSIFIERS):
            raise LoadError(FailureKind.UNSUPPORTED, f"classifiers such as this one ({name}) make no vectors")
    pooling = _pooling(directory)
    if pooling is None:
        log.warning("the model does not say how its vectors are made (1_Pooling/config.json): by the mean")
    kinds = _modules(directory)
    return Embedding(
        _size(config),
        pooling or "mean",
        _prompts(directory),
        encoder=True,
        # What says nothing at all was not made with sentence-transformers, and length 1 is the custom.
        normalised=kinds is None or "Normalize" in kinds,
    )


def _modules(directory: Path) -> set[str] | None:
    """What sentence-transformers runs one after the other; None when the folder doesn't say."""
    path = directory / "modules.json"
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.MsgspecError):
        raise LoadError(FailureKind.UNUSABLE, "modules.json is damaged") from None
    kinds = {str(module.get("type", "")).rpartition(".")[2] for module in found}
    if others := kinds - {"Transformer", "Pooling", "Normalize"}:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"embedding models with a layer behind the pooling ({min(others)}) are not supported",
        )
    return kinds


def _size(config: dict[str, Any]) -> int:
    size = config.get("hidden_size") or (config.get("text_config") or {}).get("hidden_size")
    if not isinstance(size, int):
        raise LoadError(FailureKind.UNSUPPORTED, "config.json does not say how long the vectors are")
    return size


def _prompts(directory: Path) -> dict[str, str]:
    prompts = read_json(directory / "config_sentence_transformers.json").get("prompts")
    if not isinstance(prompts, dict):
        return {}
    return {str(kind): text for kind, text in prompts.items() if isinstance(text, str)}


def check_architecture(config: dict[str, Any]) -> None:
    """Raises LoadError for encoders that nothing here has code for."""
    kind = config.get("model_type")
    if kind in _OTHER_ENCODERS:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"encoder models of type {kind} are not supported; {', '.join(sorted(ENCODERS))} are, and "
            "embedding models with a decoder such as Qwen3-Embedding",
        )


def _pooling(directory: Path) -> Pooling | None:
    """What 1_Pooling/config.json says, in its older or its newer form."""
    found = read_json(directory / "1_Pooling" / "config.json")
    newer = found.get("pooling_mode")
    modes = {name for name in (*dict(_MODES), *_OTHER_MODES) if found.get(f"pooling_mode_{name}")}
    if isinstance(newer, str):
        modes = {{"mean": "mean_tokens", "cls": "cls_token"}.get(newer, newer)}
    chosen = [pooling for name, pooling in _MODES if name in modes]
    if not modes:
        return None
    if len(modes) > 1 or not chosen:
        raise LoadError(FailureKind.UNSUPPORTED, f"pooling by {' and '.join(sorted(modes))} is not supported")
    return chosen[0]


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

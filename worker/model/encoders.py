"""Encoders (BERT and what descends from it), whose layers mlx-embeddings has.

Of that package only the modules of single architectures are imported: its own start imports a library for
vision models and all that it needs, which serves nothing here and needs not be installed.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import mlx.core as mx
import msgspec

from shared.status import FailureKind
from worker.model.failures import LoadError

_PACKAGE: Final = "mlx_embeddings"


class _Architecture(msgspec.Struct, frozen=True):
    """Where an architecture's layers are, and which weights are theirs."""

    module: str
    body: str
    """The class that makes the states of a text."""
    prefixes: tuple[str, ...]
    """What checkpoints of whole models have in front of the names of the body's weights."""
    parts: tuple[str, ...]
    """What the names of its weights begin with. All else is a head, for another purpose."""


_BERT: Final = _Architecture("bert", "Model", ("bert.",), ("embeddings", "encoder"))
_ROBERTA: Final = _Architecture("xlm_roberta", "Model", ("roberta.", "camembert."), ("embeddings", "encoder"))
_ARCHITECTURES: Final = {
    "bert": _BERT,
    "camembert": _ROBERTA,
    "modernbert": _Architecture(
        "modernbert", "ModernBertModel", ("model.",), ("embeddings", "layers", "final_norm")
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}


def encoder_classes(config: dict[str, Any]) -> Callable[[dict[str, Any]], tuple[Any, Any]]:
    """What mlx-lm's `load_model` takes for the classes of an encoder with this config.json.

    The network is called with tokens and a mask of 1 and 0, both (rows, tokens), and returns the last hidden
    states, (rows, tokens, size). Raises LoadError when it can't be run here.
    """
    kind = config["model_type"]
    architecture = _ARCHITECTURES[kind]
    for name, known in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(name, known) != known:
            raise LoadError(
                FailureKind.UNSUPPORTED,
                f"encoder models with {name} {config[name]!r} are not supported, only with {known!r}",
            )
    module = _module(architecture.module, kind)

    class Encoder(getattr(module, architecture.body)):  # type: ignore[misc]
        def __init__(self, arguments: Any) -> None:
            super().__init__(arguments)
            if "pooler" in self:
                # It makes of the first state what a classifier wants, and many folders lack its weights.
                self.pooler = _nothing

        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            return body_weights(weights, architecture.prefixes, architecture.parts)

        def __call__(self, tokens: mx.array, mask: mx.array) -> mx.array:
            output = super().__call__(tokens, attention_mask=mask)
            states: mx.array = (
                output["last_hidden_state"] if isinstance(output, dict) else output.last_hidden_state
            )
            return states

    return lambda config: (Encoder, module.ModelArgs)


def body_weights(
    weights: dict[str, Any], prefixes: tuple[str, ...], parts: tuple[str, ...]
) -> dict[str, Any]:
    """Those weights that are a body's, by the names that they have in it."""
    found = {}
    for name, array in weights.items():
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        if name.partition(".")[0] in parts and not name.endswith("position_ids"):
            found[name] = array
    return found


def _nothing(states: mx.array) -> None:
    return None


def _module(name: str, kind: str) -> Any:
    package = importlib.util.find_spec(_PACKAGE) if _PACKAGE not in sys.modules else None
    if package is None and _PACKAGE not in sys.modules:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"encoder models such as this one ({kind}) need the package mlx-embeddings: install "
            "mlx-supervisor[embeddings], or mlx-embeddings alone with --no-deps",
        )
    if package is not None:
        stand_in = ModuleType(_PACKAGE)
        stand_in.__path__ = list(package.submodule_search_locations or ())
        sys.modules[_PACKAGE] = stand_in
    try:
        module = importlib.import_module(f"{_PACKAGE}.models.{name}")
        _ = module.ModelArgs
    except (ImportError, AttributeError) as error:
        raise LoadError(
            FailureKind.UNSUPPORTED, f"this version of mlx-embeddings has no usable code for {kind}: {error}"
        ) from error
    return module

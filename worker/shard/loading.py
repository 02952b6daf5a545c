"""Loads one rank's part of a model, as mlx-lm's own sharded loading does. On the thread that computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mlx_lm.utils import load_model

from shared.launch import Options
from shared.status import FailureKind, Progress
from worker.model.embedding import Embedding
from worker.model.failures import LoadError
from worker.model.network import evaluate
from worker.shard.group import meet

_HEADS: Final = ("num_attention_heads", "num_key_value_heads")


def check_shards(options: Options, embedding: Embedding | None) -> None:
    """Raises LoadError for what a model on several machines can't have, or can't be."""
    for what, wanted in (
        ("have adapters", options.adapters),
        ("have a draft", options.draft),
        ("be an embedding model", embedding),
    ):
        if wanted:
            raise LoadError(
                FailureKind.UNSUPPORTED, f"a model that is spread over several machines can't {what}"
            )


def load_shard(
    directory: Path, group: Any, report: Callable[[Progress], None]
) -> tuple[Any, dict[str, Any], int]:
    """This rank's part of the network, the configuration, and the bytes of this part. Raises LoadError.

    The weights of the other parts are never read: nothing is evaluated before it is cut.
    """
    network, config = load_model(directory, lazy=True)
    if hasattr(network, "shard"):
        for name in _HEADS:
            heads = config.get(name)
            if isinstance(heads, int) and heads % group.size():
                raise LoadError(
                    FailureKind.UNSUPPORTED,
                    f"its {heads} {name.split('_', 1)[1].replace('_', ' ')} can't be divided among "
                    f"{group.size()} machines",
                )
        network.shard(group)
    elif hasattr(getattr(network, "model", None), "pipeline"):
        network.model.pipeline(group)
    else:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"mlx-lm can't spread models of type {config.get('model_type')} over several machines",
        )
    size = evaluate(network, report, whole=False)
    meet()
    return network, config, size

"""Loads a network's weights into memory. Runs on the engine's thread, like everything that uses mlx."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm.utils import _get_classes, load_config, load_model

from shared.status import Progress
from worker.model.embedding import Embedding, classes_for_headless, headless
from worker.model.encoders import encoder_classes
from worker.model.precision import on_cpu, parameters, weights_bytes, widen

_PIECE_BYTES: Final = 256 * 2**20
"""Weights evaluated between two reports of progress."""


def load_network(directory: Path, embedding: Embedding | None = None) -> tuple[Any, dict[str, Any]]:
    """The network and its configuration, nothing evaluated yet; `embedding` is how it makes vectors, if so.

    Raises LoadError for an encoder that can't be run here.
    """
    options: dict[str, Any] = {}
    if embedding is not None and embedding.encoder:
        options["get_model_classes"] = encoder_classes(load_config(directory))
        options["model_config"] = {"add_pooling_layer": False}
    elif embedding is not None and headless(directory):
        # Weights of the body alone; its embedding then stands in for the head.
        options["model_config"] = {"tie_word_embeddings": True}
        options["get_model_classes"] = classes_for_headless(_get_classes)
    network, config = load_model(directory, lazy=True, **options)
    return network, config


def evaluate(network: Any, report: Callable[[Progress], None], *, whole: bool = True) -> int:
    """Bring the weights into memory, piece by piece, in the precision they are computed in; their bytes.

    Not `whole` is one that computes a part of each layer: that can't be unpacked as the others are.
    """
    if whole and on_cpu():
        widen(network, lambda done, total: report(Progress("weights", done, total)))
    total = weights_bytes(network)
    done = pending = 0
    piece: list[Any] = []
    for _, array in parameters(network):
        piece.append(array)
        pending += array.nbytes
        if pending >= _PIECE_BYTES:
            mx.eval(piece)
            done, pending, piece = done + pending, 0, []
            report(Progress("weights", done, total))
    mx.eval(piece)
    return total

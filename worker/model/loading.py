"""Loads a model folder: weights and tokenizer. Runs on the engine's thread, like everything that uses mlx."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm.utils import _get_classes, load_config, load_model, load_tokenizer

from shared.launch import Options, Sampling
from shared.status import FailureKind, Progress
from worker.model.description import context_window, logits_width, sampling_defaults
from worker.model.embedding import (
    Embedding,
    check_architecture,
    classes_for_headless,
    embedding_of,
    headless,
)
from worker.model.failures import LoadError, explain
from worker.model.precision import on_cpu, parameters, weights_bytes, widen
from worker.text.detokenize import Detokenizers
from worker.text.dialect import Dialect
from worker.text.template import Template

_PIECE_BYTES: Final = 256 * 2**20
"""Weights evaluated between two reports of progress."""


@dataclass(frozen=True)
class Model:
    """A loaded model and what it can do. Only the engine's thread may touch `network`."""

    network: Any
    tokenizer: Any
    template: Template
    detokenizers: Detokenizers
    dialect: Dialect
    end_tokens: frozenset[int]
    context_window: int
    sampling: Sampling
    """Defaults of the model's own generation_config.json."""
    capabilities: tuple[str, ...]
    embedding: Embedding | None
    """How it makes vectors; None when it is not made for that."""
    weights_bytes: int
    longest_token: int
    """Characters of the longest entry of the vocabulary."""
    vocabulary: int
    """Token ids go from 0 up to, and not including, this."""
    line_breaks: tuple[int, ...]
    """Tokens of the line break."""


def load(directory: Path, options: Options, report: Callable[[Progress], None]) -> Model:
    """Load what `directory` holds; `report` may be called from any thread.

    Raises LoadError.
    """
    try:
        return _load(directory, options, report)
    except Exception as error:
        raise explain(error) from error


def _load(directory: Path, options: Options, report: Callable[[Progress], None]) -> Model:
    if not (directory / "config.json").is_file():
        # A path that is not there would be taken for a hub id, and a worker never downloads.
        raise LoadError(FailureKind.MISSING, f"there is no model in {directory} (no config.json)")
    report(Progress("weights"))
    config = load_config(directory)
    check_architecture(config)
    embedding = embedding_of(directory, config)
    network, config = _load_network(directory, bare=embedding is not None and headless(directory))
    if on_cpu():
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
    report(Progress("tokenizer"))
    tokenizer = load_tokenizer(directory, eos_token_ids=config.get("eos_token_id"))
    mx.clear_cache()
    template = Template(tokenizer)
    dialect = Dialect(tokenizer)
    vocabulary = tokenizer.get_vocab()
    return Model(
        network=network,
        tokenizer=tokenizer,
        template=template,
        detokenizers=Detokenizers(tokenizer),
        dialect=dialect,
        end_tokens=frozenset(int(token) for token in tokenizer.eos_token_ids),
        context_window=context_window(config, options.context),
        sampling=sampling_defaults(directory),
        capabilities=_capabilities(template, dialect, embedding, tokenizer),
        embedding=embedding,
        weights_bytes=total,
        longest_token=max(map(len, vocabulary), default=1),
        # Some tokenizers have tokens that the model has no logits for.
        vocabulary=min(max(vocabulary.values(), default=-1) + 1, logits_width(config)),
        line_breaks=tuple(tokenizer.encode("\n", add_special_tokens=False)),
    )


def _load_network(directory: Path, *, bare: bool) -> tuple[Any, dict[str, Any]]:
    """`bare` weights are those of the body alone; its embedding then stands in for the head."""
    options: dict[str, Any] = {}
    if bare:
        options["model_config"] = {"tie_word_embeddings": True}
        options["get_model_classes"] = classes_for_headless(_get_classes)
    network, config = load_model(directory, lazy=True, **options)
    return network, config


def _capabilities(
    template: Template, dialect: Dialect, embedding: Embedding | None, tokenizer: Any
) -> tuple[str, ...]:
    # Embedding models come with the chat template of the model they were made of, but can't chat any more.
    if embedding is not None:
        return ("embeddings",)
    if not template.usable:
        return ()
    can = {
        # Where the template knows nothing of tools, the model is told in words.
        "tools": True,
        "structured_output": getattr(tokenizer, "backend_tokenizer", None) is not None,
        "thinking": dialect.thinks,
    }
    return ("chat", *(name for name, able in can.items() if able))

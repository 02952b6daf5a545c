"""Loads a model folder: weights and tokenizer. Runs on the engine's thread, like everything that uses mlx,
but for the tokenizer, which is read meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_config

from shared.launch import Options, Sampling
from shared.status import FailureKind, Progress
from worker.model.ahead import Ahead
from worker.model.description import attention_heads, context_window, logits_width, sampling_defaults
from worker.model.draft import DraftModel, load_draft
from worker.model.embedding import Embedding, check_architecture, embedding_of
from worker.model.failures import LoadError, explain
from worker.model.network import evaluate
from worker.model.writing import Writing
from worker.shard.loading import check_shards, load_shard
from worker.text.detokenize import Detokenizers
from worker.text.dialect import Dialect
from worker.text.template import Template


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
    heads: int
    """Of one layer of attention; 0 where the model does not say."""
    line_breaks: tuple[int, ...]
    """Tokens of the line break."""
    draft: DraftModel | None = None
    """Proposes what it says while one row runs."""

    @property
    def writes(self) -> bool:
        """Whether it can make tokens of tokens; encoders can't."""
        return self.embedding is None or not self.embedding.encoder


def load(
    directory: Path, options: Options, report: Callable[[Progress], None], ahead: Ahead | None = None
) -> Model:
    """Load what `directory` holds; `report` may be called from any thread. `ahead` is what is ready already,
    of whatever model.

    Raises LoadError.
    """
    ahead = ahead or Ahead()
    try:
        return _load(directory, options, report, ahead)
    except Exception as error:
        raise explain(error) from error
    finally:
        ahead.forget()


def _load(directory: Path, options: Options, report: Callable[[Progress], None], ahead: Ahead) -> Model:
    if not (directory / "config.json").is_file():
        # A path that is not there would be taken for a hub id, and a worker never downloads.
        raise LoadError(FailureKind.MISSING, f"there is no model in {directory} (no config.json)")
    report(Progress("weights"))
    config = load_config(directory)
    check_architecture(config)
    embedding = embedding_of(directory, config)
    # Native code for the most part, and so are the weights: they don't wait for each other.
    reading = ahead.reading(directory, options.chat_template)
    if options.shards is None:
        network, config = ahead.network(directory, embedding)
        total = evaluate(network, report)
    else:
        check_shards(options, embedding)
        network, config, total = load_shard(directory, mx.distributed.init(), report)
    report(Progress("tokenizer"))
    writing = reading.result()
    mx.clear_cache()
    draft = None
    if options.draft is not None:
        if embedding is not None:
            raise LoadError(FailureKind.UNSUPPORTED, "an embedding model says nothing that could be drafted")
        draft = load_draft(
            Path(options.draft),
            target=network,
            target_directory=directory,
            vocabulary=writing.vocabulary,
            report=report,
        )
    return Model(
        network=network,
        tokenizer=writing.tokenizer,
        template=writing.template,
        detokenizers=writing.detokenizers,
        dialect=writing.dialect,
        end_tokens=writing.end_tokens,
        context_window=context_window(config, options.context),
        sampling=sampling_defaults(directory),
        capabilities=_capabilities(writing, embedding),
        embedding=embedding,
        weights_bytes=total,
        longest_token=writing.longest_token,
        # Some tokenizers have tokens that the model has no logits for.
        vocabulary=min(writing.tokens, logits_width(config)),
        heads=attention_heads(config),
        line_breaks=writing.line_breaks,
        draft=draft,
    )


def _capabilities(writing: Writing, embedding: Embedding | None) -> tuple[str, ...]:
    # Embedding models come with the chat template of the model they were made of, but can't chat any more.
    if embedding is not None:
        return ("embeddings",)
    chats = writing.template.usable
    can = {
        "chat": chats,
        "completions": True,
        "decisions": chats,
        # Where the template knows nothing of tools, the model is told in words.
        "tools": chats,
        "structured_output": getattr(writing.tokenizer, "backend_tokenizer", None) is not None,
        "thinking": chats and writing.dialect.thinks,
    }
    return tuple(name for name, able in can.items() if able)

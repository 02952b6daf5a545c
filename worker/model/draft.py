"""Loads a draft: a small model that proposes what a large one says. Runs on the engine's thread."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx_lm.utils import load_config, load_tokenizer

from shared.status import FailureKind, Progress
from worker.engine.batch import logits_width
from worker.engine.rewind import unrewindable
from worker.model.description import context_window
from worker.model.embedding import check_architecture
from worker.model.failures import LoadError, explain
from worker.model.network import evaluate, load_network

_MOST_DIFFERENT: Final = 0.01
"""Of the token ids that both have: special tokens change their names between releases of a family."""


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft. Only the engine's thread may touch `network`."""

    network: Any
    width: int
    """Of its logits."""
    context: int
    weights_bytes: int


def load_draft(
    directory: Path,
    *,
    target: Any,
    target_directory: Path,
    vocabulary: Mapping[str, int],
    report: Callable[[Progress], None],
) -> DraftModel:
    """The model in `directory`, to propose for the network `target` with this vocabulary.

    Raises LoadError when it can't: a model that was asked to have a draft and quietly has none would be a
    riddle to whoever measures it.
    """
    kinds = unrewindable(target)
    if kinds:
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"it can't have a draft: its state ({', '.join(kinds)}) can't be taken back when a proposal was "
            "wrong; take `draft` out of its settings",
        )
    try:
        return _load(directory, target_directory, vocabulary, report)
    except Exception as error:
        explained = explain(error)
        raise LoadError(explained.kind, f"its draft: {explained}") from error


def _load(
    directory: Path, target: Path, vocabulary: Mapping[str, int], report: Callable[[Progress], None]
) -> DraftModel:
    if not (directory / "config.json").is_file():
        raise LoadError(FailureKind.MISSING, f"there is no model in {directory} (no config.json)")
    check_architecture(load_config(directory))
    _check_vocabulary(directory, target, vocabulary)
    network, config = load_network(directory)
    total = evaluate(network, report)
    return DraftModel(network, logits_width(network), context_window(config, None), total)


def _check_vocabulary(directory: Path, target: Path, vocabulary: Mapping[str, int]) -> None:
    if _same_file(directory / "tokenizer.json", target / "tokenizer.json"):
        return
    theirs = {token: text for text, token in vocabulary.items()}
    own = {token: text for text, token in load_tokenizer(directory).get_vocab().items()}
    both = theirs.keys() & own.keys()
    different = sum(theirs[token] != own[token] for token in both)
    if different > _MOST_DIFFERENT * len(both) or len(both) < (1 - _MOST_DIFFERENT) * len(own):
        raise LoadError(
            FailureKind.UNSUPPORTED,
            f"it has another vocabulary: {different} of the {len(both)} token ids that both have stand for "
            f"other texts, and it has {len(own)} where the model has {len(theirs)}; take a smaller model of "
            "the same family",
        )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False

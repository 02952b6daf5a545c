"""A model's tokenizer, and what follows from it: how text becomes tokens and tokens become text.

Needs no mlx, so it can be read on a thread of its own while the weights come.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx_lm import tokenizer_utils
from mlx_lm.utils import load_config, load_tokenizer
from transformers import PreTrainedTokenizerFast

from shared.status import FailureKind
from worker.model.failures import LoadError, explain
from worker.text.detokenize import Detokenizers
from worker.text.dialect import Dialect
from worker.text.template import Template

_READS: Final = threading.Lock()
"""One at a time: meanwhile mlx-lm and transformers do some things otherwise, for all threads."""


@dataclass(frozen=True)
class Writing:
    """Of one model. `tokenizer` is mlx-lm's wrapper."""

    tokenizer: Any
    template: Template
    detokenizers: Detokenizers
    dialect: Dialect
    vocabulary: dict[str, int]
    """Token ids by their texts."""
    longest_token: int
    """Characters of the longest of them; 1 where there is none."""
    tokens: int
    """Their ids go from 0 up to, and not including, this."""
    end_tokens: frozenset[int]
    line_breaks: tuple[int, ...]
    """Tokens of the line break."""


def read_writing(directory: Path, chat_template: str | None) -> Writing:
    """What the folder's tokenizer makes of text. `chat_template` is the path of a file with a template that
    takes the place of its own.

    Raises LoadError.
    """
    extra = _template_of(chat_template)
    try:
        end = load_config(directory).get("eos_token_id")
        with _READS, vocabularies_made_once(), without_detokenizer():
            tokenizer = load_tokenizer(directory, extra, eos_token_ids=end)
            vocabulary = tokenizer.get_vocab()
        return _writing(tokenizer, vocabulary)
    except Exception as error:
        # Nothing but its files is looked at here; what reads them raises errors of every kind.
        raise explain(error, "the tokenizer can't be read", unknown=FailureKind.UNUSABLE) from error


def _writing(tokenizer: Any, vocabulary: dict[str, int]) -> Writing:
    # Everything below asks for it too.
    tokenizer.get_vocab = lambda: vocabulary
    template = Template(tokenizer)
    template.compile()
    return Writing(
        tokenizer=tokenizer,
        template=template,
        detokenizers=Detokenizers(tokenizer),
        dialect=Dialect(tokenizer),
        vocabulary=vocabulary,
        longest_token=max(map(len, vocabulary), default=1),
        tokens=max(vocabulary.values(), default=-1) + 1,
        end_tokens=frozenset(int(token) for token in tokenizer.eos_token_ids),
        line_breaks=tuple(tokenizer.encode("\n", add_special_tokens=False)),
    )


@contextlib.contextmanager
def vocabularies_made_once() -> Iterator[None]:
    """Within, tokenizers make the dictionary of their tokens once for each size that it has.

    It takes a tenth of a second for 50,000 tokens, and mlx-lm has it made three times.
    """
    make = PreTrainedTokenizerFast.get_vocab
    # By the tokenizers themselves, so that none of them goes and leaves its place to another.
    made: dict[tuple[PreTrainedTokenizerFast, int], dict[str, int]] = {}

    def get_vocab(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
        key = tokenizer, len(tokenizer)
        if key not in made:
            made[key] = make(tokenizer)
        return made[key]

    PreTrainedTokenizerFast.get_vocab = get_vocab
    try:
        yield
    finally:
        PreTrainedTokenizerFast.get_vocab = make


@contextlib.contextmanager
def without_detokenizer() -> Iterator[None]:
    """Within, mlx-lm gives tokenizers its simplest detokenizer: we have our own.

    To choose one it would read the whole of tokenizer.json, which transformers reads too, and then look up
    every token. For a vocabulary of 50,000 that was a third of the time that a tokenizer took.
    """
    tokenizer_utils.json = _Unread
    try:
        yield
    finally:
        tokenizer_utils.json = json


class _Unread:
    """Stands for the json module where mlx-lm reads tokenizer.json: it finds nothing in it."""

    @staticmethod
    def load(_file: object) -> dict[str, Any]:
        return {}


def _template_of(chat_template: str | None) -> dict[str, Any]:
    """What the tokenizer is told beside its files: the template that takes the place of its own."""
    if chat_template is None:
        return {}
    try:
        text = Path(chat_template).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise LoadError(FailureKind.MISSING, f"the chat template can't be read: {reason}") from error
    # Some models bring theirs as a program, which counts before a text.
    return {"chat_template": text, "chat_template_type": None}

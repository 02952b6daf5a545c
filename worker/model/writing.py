"""A model's tokenizer, and what follows from it: how text becomes tokens and tokens become text.

Needs no mlx, so it is read on a thread of its own while the weights come.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_tokenizer

from shared.launch import Options
from shared.status import FailureKind
from worker.model.failures import LoadError
from worker.text.detokenize import Detokenizers
from worker.text.dialect import Dialect
from worker.text.template import Template


@dataclass(frozen=True)
class Writing:
    """Of one model. `tokenizer` is mlx-lm's wrapper."""

    tokenizer: Any
    template: Template
    detokenizers: Detokenizers
    dialect: Dialect
    vocabulary: dict[str, int]
    """Token ids by their texts."""
    end_tokens: frozenset[int]
    line_breaks: tuple[int, ...]
    """Tokens of the line break."""


def read_writing(directory: Path, options: Options, config: dict[str, Any]) -> Writing:
    """What the folder's tokenizer makes of text; `config` is its config.json.

    Raises LoadError for a chat template that can't be read, and whatever transformers raises.
    """
    tokenizer = load_tokenizer(directory, _template_of(options), eos_token_ids=config.get("eos_token_id"))
    vocabulary = tokenizer.get_vocab()
    # Made anew at each question it takes a tenth of a second, and everything below asks for it.
    tokenizer.get_vocab = lambda: vocabulary
    return Writing(
        tokenizer=tokenizer,
        template=Template(tokenizer),
        detokenizers=Detokenizers(tokenizer),
        dialect=Dialect(tokenizer),
        vocabulary=vocabulary,
        end_tokens=frozenset(int(token) for token in tokenizer.eos_token_ids),
        line_breaks=tuple(tokenizer.encode("\n", add_special_tokens=False)),
    )


def _template_of(options: Options) -> dict[str, Any]:
    """What the tokenizer is told beside its files: the template that takes the place of its own."""
    if options.chat_template is None:
        return {}
    try:
        text = Path(options.chat_template).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise LoadError(FailureKind.MISSING, f"the chat template can't be read: {reason}") from error
    # Some models bring theirs as a program, which counts before a text.
    return {"chat_template": text, "chat_template_type": None}

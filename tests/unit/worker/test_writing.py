"""What is read of a tokenizer beside the weights."""

from typing import Any

import pytest
from mlx_lm.utils import load_config, load_tokenizer
from transformers import PreTrainedTokenizerFast

from shared.launch import Options
from tests.fixtures.tiny import tiny_model
from worker.model.writing import read_writing, vocabularies_made_once


def test_a_vocabulary_is_made_once_and_is_the_tokenizers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model()
    whole = load_tokenizer(folder).get_vocab()
    make, made = PreTrainedTokenizerFast.get_vocab, []

    def counted(tokenizer: Any) -> dict[str, int]:
        made.append(tokenizer)
        return make(tokenizer)  # type: ignore[no-any-return]

    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", counted)
    writing = read_writing(folder, Options(), load_config(folder))
    assert writing.vocabulary == whole == writing.tokenizer.get_vocab()
    assert len(made) == 1
    assert PreTrainedTokenizerFast.get_vocab is counted, "only while it is read"


def test_a_vocabulary_that_grows_is_made_anew() -> None:
    with vocabularies_made_once():
        tokenizer = load_tokenizer(tiny_model())
        before = tokenizer.get_vocab()
        tokenizer.add_tokens(["<|new|>"])
        assert tokenizer.get_vocab()["<|new|>"] == len(before)
        assert "<|new|>" not in before

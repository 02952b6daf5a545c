"""What is read of a tokenizer beside the weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from mlx_lm import tokenizer_utils
from mlx_lm.utils import load_tokenizer
from transformers import PreTrainedTokenizerFast

from shared.status import FailureKind
from tests.fixtures.tiny import tiny_model
from worker.model.failures import LoadError
from worker.model.writing import read_writing, vocabularies_made_once, without_detokenizer
from worker.request import Message, Request


def test_a_vocabulary_is_made_once_and_is_the_tokenizers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model()
    whole = load_tokenizer(folder).get_vocab()
    make, made = PreTrainedTokenizerFast.get_vocab, []

    def counted(tokenizer: Any) -> dict[str, int]:
        made.append(tokenizer)
        return make(tokenizer)  # type: ignore[no-any-return]

    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", counted)
    writing = read_writing(folder, None)
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


def test_no_detokenizer_is_made_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model()
    chosen = type(load_tokenizer(folder).detokenizer)
    assert chosen is not tokenizer_utils.NaiveStreamingDetokenizer, "or the test shows nothing"
    with without_detokenizer():
        tokenizer = load_tokenizer(folder)
    assert type(tokenizer.detokenizer) is tokenizer_utils.NaiveStreamingDetokenizer
    assert tokenizer_utils.json is json, "only while it is read"
    monkeypatch.setattr(tokenizer_utils, "BPEStreamingDetokenizer", None)
    writing = read_writing(folder, None)
    assert writing.tokenizer.encode("of one model") == tokenizer.encode("of one model")


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model(), tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(LoadError, match=r"the tokenizer can't be read: .*line 1 column 13") as raised:
        read_writing(folder, None)
    assert raised.value.kind is FailureKind.UNUSABLE
    assert tokenizer_utils.json is json


def test_the_first_conversation_finds_the_template_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{# like no other #}{% for message in messages %}{{ message.content }}{% endfor %}")
    writing = read_writing(tiny_model(), str(template))
    monkeypatch.setattr(ImmutableSandboxedEnvironment, "from_string", None)
    assert "hello" in writing.template.render(Request(messages=(Message("user", "hello"),)))


def test_a_template_that_refuses_everybody_is_read(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('no') }}")
    assert read_writing(tiny_model(), str(template)).template.usable


def test_a_template_that_is_none_is_not_the_conversations_fault(tmp_path: Path) -> None:
    """Each chat was answered 400, as if another conversation would do."""
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages }}\n{% if %}")
    template = read_writing(tiny_model(), str(path)).template
    assert not template.usable
    error = template.unusable("tiny")
    assert error.status == 501
    assert error.message.startswith(
        "'tiny' can't chat: its chat template is damaged (line 2: Expected an expr"
    )

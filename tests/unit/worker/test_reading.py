"""What a spare reads before it knows its model, and whether a load may use it."""

import gc
import json
import os
import shutil
import weakref
from pathlib import Path

import pytest
from mlx_lm import tokenizer_utils
from transformers import PreTrainedTokenizerFast

from shared.launch import Options
from tests.fixtures.tiny import Tiny, tiny_model
from worker.model.failures import LoadError
from worker.model.loading import load
from worker.model.reading import Reading, reading_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model(), tmp_path / "model")


def test_what_was_read_ahead_is_used(folder: Path) -> None:
    ahead = Reading(folder, None)
    assert reading_of(folder, None, ahead) is ahead
    writing = ahead.result()
    model = load(folder, Options(), lambda _: None, ahead)
    assert model.tokenizer is writing.tokenizer


def test_another_model_or_another_template_is_read_by_itself(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    ahead = Reading(folder, None)
    other = reading_of(folder, str(template), ahead)
    assert other is not ahead and other.result().tokenizer.chat_template == "{{ messages }}"
    assert reading_of(tiny_model(), None, ahead) is not ahead
    assert reading_of(folder, str(template), other) is other
    template.write_text("{{ messages[0] }}")
    assert reading_of(folder, str(template), other).result().tokenizer.chat_template == "{{ messages[0] }}"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "new.jinja"])
def test_a_folder_that_has_changed_is_read_anew(folder: Path, name: str) -> None:
    ahead = Reading(folder, None)
    ahead.result()
    path = folder / name
    path.touch()
    os.utime(path, ns=(1, 1))
    assert reading_of(folder, None, ahead) is not ahead


def test_weights_that_are_touched_change_no_tokenizer(folder: Path) -> None:
    ahead = Reading(folder, None)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert reading_of(folder, None, ahead) is ahead
    ahead.result()


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    nothing = Reading(tmp_path / "model", None)
    with pytest.raises(LoadError):
        nothing.result()
    shutil.copytree(tiny_model(), tmp_path / "model")
    assert reading_of(tmp_path / "model", None, nothing).result().tokenizer.encode("a")


def test_two_at_a_time_leave_mlx_lm_and_transformers_as_they_were(folder: Path) -> None:
    make = PreTrainedTokenizerFast.get_vocab
    both = Reading(folder, None), Reading(tiny_model(Tiny(architecture="qwen3")), None)
    for reading in both:
        reading.result()
    assert PreTrainedTokenizerFast.get_vocab is make and tokenizer_utils.json is json


def test_what_is_not_wanted_is_let_go(folder: Path) -> None:
    ahead = Reading(folder, None)
    tokenizer = weakref.ref(ahead.result().tokenizer)
    assert tokenizer() is not None
    reading_of(tiny_model(), None, ahead).result()
    gc.collect()
    assert tokenizer() is None, "its wrong guess stays in memory for as long as the worker lives"

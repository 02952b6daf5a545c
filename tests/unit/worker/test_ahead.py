"""What a spare has ready before it knows its model, and whether a load may use it."""

import gc
import json
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import tokenizer_utils
from transformers import PreTrainedTokenizerFast

from shared.launch import Options
from tests.fixtures.minilm import minilm_model
from tests.fixtures.tiny import Tiny, tiny_model
from worker.model.ahead import Ahead
from worker.model.failures import LoadError
from worker.model.loading import Model, load
from worker.model.network import load_network
from worker.model.reading import Reading


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model(), tmp_path / "model")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that networks are built of."""
    folders: list[Path] = []

    def note(directory: Path, *rest: Any) -> tuple[Any, dict[str, Any]]:
        folders.append(directory)
        return load_network(directory, *rest)

    monkeypatch.setattr("worker.model.ahead.load_network", note)
    return folders


def looking_ahead(directory: Path, chat_template: str | None = None) -> Ahead:
    ahead = Ahead()
    ahead.read(directory, chat_template)
    ahead.build(directory)
    return ahead


def loaded(directory: Path, ahead: Ahead | None = None) -> Model:
    return load(directory, Options(), lambda _: None, ahead)


def rewrite(path: Path) -> None:
    path.touch()
    os.utime(path, ns=(1, 1))


def test_what_is_ready_is_used_and_computes_the_same(folder: Path, built: list[Path]) -> None:
    ahead = looking_ahead(folder)
    tokenizer = ahead.reading(folder, None).result().tokenizer
    ready = loaded(folder, ahead)
    assert built == [folder] and ready.tokenizer is tokenizer
    tokens = mx.array([[1, 2, 3]])
    assert mx.array_equal(ready.network(tokens), loaded(folder).network(tokens)).item()


def test_looking_ahead_twice_for_one_model_is_done_once(folder: Path, built: list[Path]) -> None:
    ahead = looking_ahead(folder)
    reading = ahead.reading(folder, None)
    ahead.read(folder, None)
    ahead.build(folder)
    assert built == [folder] and ahead.reading(folder, None) is reading


def test_another_model_is_loaded_by_itself(folder: Path, built: list[Path]) -> None:
    other = tiny_model(Tiny(architecture="qwen3"))
    assert loaded(folder, looking_ahead(other)).tokenizer is not None
    assert built == [other, folder]


def test_another_template_is_read_by_itself(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    ahead = looking_ahead(folder)
    plain = ahead.reading(folder, None)
    ahead.read(folder, str(template))
    other = ahead.reading(folder, str(template))
    assert other is not plain and other.result().tokenizer.chat_template == "{{ messages }}"
    template.write_text("{{ messages[0] }}")
    assert ahead.reading(folder, str(template)).result().tokenizer.chat_template == "{{ messages[0] }}"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "new.jinja"])
def test_a_folder_that_has_changed_is_read_anew(folder: Path, built: list[Path], name: str) -> None:
    ahead = looking_ahead(folder)
    reading = ahead.reading(folder, None)
    reading.result()
    rewrite(folder / name)
    assert ahead.reading(folder, None) is not reading
    ahead.network(folder, None)
    assert built == [folder, folder]


def test_weights_that_are_touched_change_no_tokenizer(folder: Path, built: list[Path]) -> None:
    ahead = looking_ahead(folder)
    reading = ahead.reading(folder, None)
    rewrite(folder / "model.safetensors")
    assert ahead.reading(folder, None) is reading
    ahead.network(folder, None)
    assert built == [folder, folder]
    reading.result()


def test_weights_that_were_put_in_the_place_of_others_are_what_is_loaded(folder: Path) -> None:
    """The lazy arrays have the old file open, whatever its name stands for by now."""
    ahead = looking_ahead(folder)
    other = tiny_model(Tiny(seed=1)) / "model.safetensors"
    state = (folder / "model.safetensors").stat()
    shutil.copy(other, folder / "new")
    os.utime(folder / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
    (folder / "new").replace(folder / "model.safetensors")
    tokens = mx.array([[1, 2, 3]])
    expected = loaded(tiny_model(Tiny(seed=1))).network(tokens)
    assert mx.array_equal(loaded(folder, ahead).network(tokens), expected).item()


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    ahead = looking_ahead(tmp_path / "model")
    with pytest.raises(LoadError):
        ahead.reading(tmp_path / "model", None).result()
    shutil.copytree(tiny_model(), tmp_path / "model")
    assert loaded(tmp_path / "model", ahead).tokenizer.encode("a")


def test_what_cannot_be_built_is_told_by_the_load(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nonsense"}))
    with pytest.raises(LoadError, match="nonsense"):
        loaded(folder, looking_ahead(folder))


def test_an_encoder_is_built_as_one(built: list[Path]) -> None:
    folder = minilm_model()
    model = loaded(folder, looking_ahead(folder))
    assert built == [folder]
    assert model.embedding is not None and model.embedding.encoder


def test_nothing_of_the_weights_is_in_memory(folder: Path) -> None:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    ahead = looking_ahead(folder)
    bytes_ahead = mx.get_active_memory() - before
    assert bytes_ahead < 0.01 * loaded(folder, ahead).weights_bytes


def test_two_at_a_time_leave_mlx_lm_and_transformers_as_they_were(folder: Path) -> None:
    make = PreTrainedTokenizerFast.get_vocab
    both = Reading(folder, None), Reading(tiny_model(Tiny(architecture="qwen3")), None)
    for reading in both:
        reading.result()
    assert PreTrainedTokenizerFast.get_vocab is make and tokenizer_utils.json is json


def held_open(directory: Path) -> bool:
    opened = (os.path.realpath(entry.path) for entry in os.scandir("/proc/self/fd"))
    return any(path.startswith(str(directory)) for path in opened)


@pytest.mark.parametrize("how", ["another", "none"])
def test_what_is_not_wanted_is_let_go(folder: Path, how: str) -> None:
    ahead = looking_ahead(folder)
    tokenizer = weakref.ref(ahead.reading(folder, None).result().tokenizer)
    assert tokenizer() is not None
    if how == "none":
        ahead.forget()
    else:
        loaded(tiny_model(), ahead)
    gc.collect()
    assert tokenizer() is None, "its wrong guess stays in memory for as long as the worker lives"
    if Path("/proc/self/fd").exists():
        assert not held_open(folder), "a model that is removed now keeps its bytes on the disk"

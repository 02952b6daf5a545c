"""Which models can be a draft for which, on real folders; and what a draft adds to the needs of a row."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PublicError
from shared.launch import Options
from shared.status import FailureKind
from tests.fixtures.tiny import VOCABULARY, Tiny, tiny_model
from tests.unit.worker.test_batch import TINY, loaded
from tests.unit.worker.test_speculation import mamba_network
from worker.engine.admission import Admission
from worker.engine.needs import Needs
from worker.engine.turns import Terms
from worker.model.draft import DraftModel, load_draft
from worker.model.failures import LoadError
from worker.model.loading import load

SMALL = Tiny(seed=9, layers=1)


def draft_of(directory: Path, network: Any = None) -> DraftModel:
    model = loaded(TINY)
    return load_draft(
        directory,
        target=network or model.network,
        target_directory=tiny_model(),
        vocabulary=model.tokenizer.get_vocab(),
        report=lambda _: None,
    )


def refusal(directory: Path, network: Any = None) -> LoadError:
    with pytest.raises(LoadError) as caught:
        draft_of(directory, network)
    return caught.value


def copied(tmp_path: Path, renamed: dict[str, str]) -> Path:
    """The small model with other texts for some of its tokens."""
    folder = tmp_path / "draft"
    shutil.copytree(tiny_model(SMALL), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {renamed.get(text, text): token for text, token in vocabulary.items()}
    path.write_text(json.dumps(tokenizer))
    return folder


def test_a_smaller_model_of_the_family_is_loaded_with_the_model() -> None:
    model = load(tiny_model(), Options(draft=str(tiny_model(SMALL))), lambda _: None)
    assert model.draft is not None
    assert model.draft.width == VOCABULARY
    assert model.draft.context == SMALL.context
    assert 0 < model.draft.weights_bytes < model.weights_bytes
    assert model.weights_bytes == loaded(TINY).weights_bytes


def test_a_few_renamed_tokens_do_not_matter(tmp_path: Path) -> None:
    assert draft_of(copied(tmp_path, {"a": "½a"})).width == VOCABULARY


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    turned = {chr(letter): chr(219 - letter) for letter in range(ord("a"), ord("z") + 1)}
    error = refusal(copied(tmp_path, turned))
    assert error.kind is FailureKind.UNSUPPORTED
    assert str(error).startswith("its draft: it has another vocabulary: 26 of the 263 token ids")
    assert "same family" in str(error)


def test_a_model_that_can_not_take_tokens_back_is_refused() -> None:
    error = refusal(tiny_model(SMALL), mamba_network())
    assert error.kind is FailureKind.UNSUPPORTED
    assert "ArraysCache" in str(error) and "take `draft` out of its settings" in str(error)


def test_a_draft_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nothing")
    assert error.kind is FailureKind.MISSING
    assert str(error).startswith("its draft: there is no model in")


def test_the_draft_counts_for_one_row_however_many_run() -> None:
    needs = Needs(token_bytes=1000, draft=Needs(token_bytes=100))
    assert needs.batch_bytes([256, 100]) == 2 * 256_000 + 25_600
    assert needs.batch_bytes([]) == 0
    admission = Admission(rows=2, queue=2)
    admission.limit(needs, Terms(281_600, 281_600))
    admission.check(256)
    with pytest.raises(PublicError, match="512 tokens"):
        admission.check(512)

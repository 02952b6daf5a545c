"""Prompt state on disk: what was saved answers as if it had been computed, and nothing else is served."""

import os
import stat
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache
from mlx_lm.utils import load_model

from tests.fixtures.cache_kinds import write_kind
from tests.unit.worker.test_prompt_reuse import AMPLE, new_batch, row, run, text
from worker.engine.host_state import unpack
from worker.engine.prompt_cache import Entry, PromptCache, as_tokens
from worker.engine.saved_state import SavedState
from worker.engine.saver import Saver


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kinds")

    @cache
    def network(kind: str) -> Any:
        return load_model(write_kind(Path(folder) / kind, kind))[0]

    return network


def opened(root: Path, identity: str = "model", *, budget_bytes: int = AMPLE) -> SavedState:
    saved = SavedState(root, identity, budget_bytes=budget_bytes)
    saved.open()
    return saved


def save(cache: PromptCache, saved: SavedState) -> None:
    saver = Saver(cache, saved)
    while saver.step(1000, everything=True):
        pass
    saved.flush().result()


def restored(saved: SavedState, prompt: list[int], **wanted: Any) -> PromptCache:
    """A fresh cache, as in a new process, with what is on disk for `prompt`."""
    cache = PromptCache(AMPLE)
    wanted = {"adapter": "", "session": None, "longer_than": 0, **wanted}
    found = saved.find(as_tokens(prompt), **wanted)
    if found is not None and (host := saved.read(found)) is not None:
        cache.put(Entry(found.tokens, unpack(host), found.adapter, found.session, saved=True))
    return cache


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("qwen3", "float32"),
        ("mamba", "float32"),
        ("lfm2", "float32"),
        ("falcon_h1", "float32"),
        ("gemma3_text", "float16"),
    ],
)
def test_restored_state_answers_as_computed_state_does(
    networks: Any, kind: str, dtype: str, tmp_path: Path
) -> None:
    network = networks(kind)
    if dtype != "float32":
        network = load_model(write_kind(tmp_path / "model", kind, dtype=dtype))[0]
    (root := tmp_path / "kv").mkdir()
    prompts = PromptCache(AMPLE)
    first = text(1, 150)
    answer, _ = run(new_batch(network, prompts), row(0, first, boundaries=(60, 140)))[0]
    save(prompts, opened(root))
    second = first + answer + text(2, 30)
    later = restored(opened(root), second)
    tokens, cached = run(new_batch(network, later), row(1, second))[1]
    assert cached == len(first) + len(answer) - 1
    # Not of itself what is computed in one go: half precision rounds otherwise in other batches.
    warm, _ = run(new_batch(network, prompts), row(1, second))[1]
    assert tokens == warm
    if dtype == "float32":
        assert tokens == run(new_batch(network), row(1, second))[1][0]


@pytest.fixture
def kept(networks: Any, tmp_path: Path) -> tuple[Path, Path]:
    """The root folder and the one file of one saved state."""
    prompts = PromptCache(AMPLE)
    run(new_batch(networks("llama"), prompts), row(0, text(1, 100)))
    (root := tmp_path / "kv").mkdir()
    save(prompts, opened(root))
    (file,) = (root / "model").iterdir()
    return root, file


def test_files_are_the_owners_alone(kept: tuple[Path, Path]) -> None:
    _, file = kept
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def _flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("place", [0, 9, 40, 700, -5])
def test_a_damaged_file_is_removed_and_never_served(kept: tuple[Path, Path], place: int) -> None:
    root, file = kept
    file.write_bytes(_flip(file.read_bytes(), place % file.stat().st_size))
    saved = opened(root)
    assert len(restored(saved, text(1, 100))) == 0
    assert not file.exists() and saved.entries == 0 and saved.counts.failed == 1
    assert saved.counts.restores == 0


@pytest.mark.parametrize("length", [0, 5, 300, -1])
def test_a_file_cut_short_is_removed(kept: tuple[Path, Path], length: int) -> None:
    root, file = kept
    file.write_bytes(file.read_bytes()[:length])
    saved = opened(root)
    assert len(restored(saved, text(1, 100))) == 0
    assert not file.exists() and saved.counts.failed == 1


def test_another_models_file_is_removed(kept: tuple[Path, Path]) -> None:
    root, file = kept
    (root / "other").mkdir()
    moved = file.rename(root / "other" / file.name)
    saved = opened(root, "other")
    assert saved.entries == 0 and not moved.exists()


def test_a_symlink_is_not_followed(kept: tuple[Path, Path], tmp_path: Path) -> None:
    root, file = kept
    elsewhere = file.rename(tmp_path / "elsewhere")
    file.symlink_to(elsewhere)
    assert opened(root).entries == 0
    assert elsewhere.exists() and not file.is_symlink()


def test_a_file_that_is_gone_meanwhile_is_a_miss(kept: tuple[Path, Path]) -> None:
    root, file = kept
    saved = opened(root)
    file.unlink()
    assert len(restored(saved, text(1, 100))) == 0
    assert saved.entries == 0 and saved.counts.failed == 0


def _entry(cache: PromptCache, seed: int, **fields: Any) -> None:

    layer = ArraysCache(1)
    layer[0] = mx.full((1, 1000), float(seed))
    cache.put(Entry(as_tokens(text(seed, 100)), [layer], **fields))


def test_the_budget_is_for_all_models_and_the_oldest_go_first(tmp_path: Path) -> None:
    for number, identity in enumerate(("a", "b", "c")):
        cache = PromptCache(AMPLE)
        _entry(cache, number)
        save(cache, opened(tmp_path, identity, budget_bytes=12_000))
        for file in (tmp_path / identity).iterdir():
            # Files of one test are as old as each other.
            os.utime(file, (number, number))
    assert sorted(path.parent.name for path in tmp_path.glob("*/*")) == ["b", "c"]


def test_a_state_larger_than_the_budget_is_dropped(tmp_path: Path) -> None:
    cache = PromptCache(AMPLE)
    _entry(cache, 1)
    saved = opened(tmp_path, budget_bytes=100)
    save(cache, saved)
    assert saved.counts.dropped == 1 and saved.entries == 0


def test_a_disk_that_refuses_costs_no_answer(tmp_path: Path) -> None:
    cache = PromptCache(AMPLE)
    _entry(cache, 1)
    saved = opened(tmp_path)
    saved.folder.rmdir()
    saved.folder.write_text("in the way")
    save(cache, saved)
    assert saved.counts.failed == 1 and saved.entries == 0


def test_what_is_evicted_is_saved_and_what_continues_it_replaces_it(networks: Any, tmp_path: Path) -> None:
    network = networks("llama")
    prompts = PromptCache(AMPLE)
    saved = opened(tmp_path)
    saver = Saver(prompts, saved)
    batch = new_batch(network, prompts)
    run(batch, row(0, text(1, 100)))
    assert not saver.step(), "nothing leaves memory yet"
    prompts.shrink(0)
    assert saver.leaving_bytes > 0
    while saver.step():
        pass
    saved.flush().result()
    assert (saved.entries, saved.counts.spills, saver.leaving_bytes) == (1, 1, 0)
    run(batch, row(1, text(1, 100) + text(2, 80)))
    prompts.shrink(0)
    while saver.step():
        pass
    saved.flush().result()
    assert saved.counts.spills == 2
    assert len(list(saved.folder.iterdir())) in (1, 2)


def test_adapters_do_not_share_files(tmp_path: Path) -> None:
    cache = PromptCache(AMPLE)
    _entry(cache, 1, adapter="sql")
    saved = opened(tmp_path)
    save(cache, saved)
    tokens = np.append(as_tokens(text(1, 100)), 7).astype(np.int32)
    assert saved.find(tokens, adapter="", session=None, longer_than=0) is None
    assert saved.find(tokens, adapter="sql", session=None, longer_than=0) is not None

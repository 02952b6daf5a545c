"""What the settings mean for a worker."""

from pathlib import Path

import pytest

from supervisor.catalog.catalog import ModelEntry
from supervisor.settings import MemorySettings, ModelSettings
from supervisor.workers.options import options_of, preview_of

FOLDER = Path("/home/state/kv")


def test_defaults_leave_the_choice_to_the_worker() -> None:
    options = options_of(ModelSettings(), MemorySettings(), FOLDER)
    assert (options.prompt_cache_bytes, options.saved_state_bytes, options.thinking) == (None, None, None)
    assert options.saved_state == str(FOLDER)


def test_caps_and_thinking_are_passed_on() -> None:
    memory = MemorySettings(prompt_cache_bytes=0, saved_state_bytes=5)
    options = options_of(ModelSettings(thinking="low"), memory, FOLDER)
    assert (options.prompt_cache_bytes, options.saved_state_bytes, options.thinking) == (0, 5, "low")
    assert options_of(ModelSettings(thinking=False), memory, FOLDER).thinking is False


def test_no_disk_means_no_folder() -> None:
    assert options_of(ModelSettings(), MemorySettings(saved_state_bytes=0), FOLDER).saved_state is None


def test_adapters_have_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    options = options_of(ModelSettings(adapters={"sql": "~/sql"}), MemorySettings(), FOLDER)
    assert options.adapters == {"sql": "/home/me/sql"}


def test_a_draft_is_passed_on_as_a_folder() -> None:
    options = options_of(
        ModelSettings(draft="small", draft_tokens=7), MemorySettings(), FOLDER, Path("/m/small")
    )
    assert (options.draft, options.draft_tokens) == ("/m/small", 7)
    assert options_of(ModelSettings(), MemorySettings(), FOLDER).draft is None


def test_a_preview_says_what_the_record_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = ModelSettings(chat_template="~/own.jinja")
    preview = preview_of(ModelEntry("a", tmp_path / "model", settings))
    assert preview.directory == str(tmp_path / "model")
    assert preview.chat_template == options_of(settings, MemorySettings(), FOLDER).chat_template
    assert preview.chat_template == str(tmp_path / "own.jinja")

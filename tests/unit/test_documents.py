"""What the documents say is what the program does, as far as that can be executed."""

import re
from pathlib import Path

import pytest

from supervisor.settings import load_settings
from supervisor.settings.reference import EXAMPLE, reference

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "deploy").glob("*.md")])
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_reference_of_the_settings_is_up_to_date() -> None:
    assert (ROOT / "deploy" / "config.md").read_text() == reference(), "run: make reference"


def test_the_example_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(EXAMPLE)
    settings = load_settings(tmp_path / "config.toml", environ={})
    assert settings.for_model("qwen3-8b").sampling.temperature == 0.7
    assert settings.for_model("notes").context is None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_configuration_shown_is_accepted(document: Path, tmp_path: Path) -> None:
    for text in _TOML.findall(document.read_text()):
        (tmp_path / "config.toml").write_text(text)
        load_settings(tmp_path / "config.toml", environ={})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_into_the_project_leads_somewhere(document: Path) -> None:
    for target in _LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"

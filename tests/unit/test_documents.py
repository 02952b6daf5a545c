"""What the documents say is what the program does, as far as that can be executed."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.app import app
from supervisor.settings import load_settings
from supervisor.settings.reference import EXAMPLE, reference


def verbs() -> list[tuple[str, Callable[..., object]]]:
    return [
        (command.name or command.callback.__name__, command.callback)
        for command in app.registered_commands
        if command.callback is not None and not command.hidden
    ]


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


def test_the_readme_has_every_verb() -> None:
    shown = set(re.findall(r"^\| `mlx-supervisor (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert shown == {name for name, _ in verbs()} | {group.name for group in app.registered_groups}


@pytest.mark.parametrize(("name", "function"), verbs())
def test_every_verb_explains_itself_with_an_example(name: str, function: Callable[..., object]) -> None:
    text = CliRunner().invoke(app, [name, "--help"], prog_name="mlx-supervisor").output
    example = text.partition("Example:\n")[2].splitlines()[0].strip()
    assert example.startswith(f"mlx-supervisor {name}")
    for option in re.findall(r"\s(--?[a-z][a-z-]*)", example):
        assert re.search(rf"^\s+.*{option}\b", text.partition("Options:")[2], re.MULTILINE), option
    first = inspect.cleandoc(function.__doc__ or "").partition("\n")[0]
    assert first.endswith("."), "the first line is what the list of commands shows"

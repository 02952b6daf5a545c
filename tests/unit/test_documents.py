"""What the documents say is what the program does, as far as that can be executed."""

import re
from pathlib import Path

import pytest

from supervisor.cli.app import VERBS, command
from supervisor.routes.discovery import ROUTES
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


def test_the_readme_has_every_verb() -> None:
    shown = set(re.findall(r"^\| `mlx-supervisor (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert shown == set(VERBS)


def test_the_readme_has_every_route_that_is_served() -> None:
    shown = re.findall(r"^\| (`.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {path for cell in shown for path in re.findall(r"/[\w/{}]*", cell)}
    assert not {route.split()[1] for route in ROUTES} - named


def every_verb() -> list[tuple[str, ...]]:
    """The verbs as they are typed, those of `config` and `service` too."""
    found: list[tuple[str, ...]] = []
    for name, verb in command().commands.items():
        inner = getattr(verb, "commands", {})
        found += [(name, key) for key in inner if not inner[key].hidden] if inner else [(name,)]
    return found


@pytest.mark.parametrize("names", every_verb(), ids=" ".join)
def test_every_verb_explains_itself_with_an_example(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command()([*names, "--help"], prog_name="mlx-supervisor")
    text = capsys.readouterr().out
    example = text.partition("Example:\n")[2].splitlines()[0].strip()
    assert f"mlx-supervisor {' '.join(names)}" in example
    for option in re.findall(r"\s(--?[a-z][a-z-]*)", example):
        assert re.search(rf"^\s+.*{option}\b", text.partition("Options:")[2], re.MULTILINE), option


def test_the_list_of_verbs_fits_into_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command()(["--help"], prog_name="mlx-supervisor")
    text = capsys.readouterr().out.partition("Commands:\n")[2]
    assert [line.split()[0] for line in text.splitlines()] == list(VERBS)


READS = [
    *("ps", "list", "info", "fit", "status", "doctor", "quickstart", "rm", "gc", "reload"),
    *("config show", "service status"),
]


@pytest.mark.parametrize("verb", READS)
def test_what_a_verb_tells_is_there_for_programs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command()([*verb.split(), "--help"])
    assert "--json" in capsys.readouterr().out

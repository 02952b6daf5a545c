"""The settings as they are shown, and the first file that is written."""

import json
import re
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shared.sizes import parse_duration, parse_size
from supervisor.settings import Settings, load_settings
from supervisor.settings.keys import fixed_keys, model_keys, written_value
from supervisor.settings.schema import schema
from supervisor.settings.shown import ShownValue, as_toml, shown_values
from supervisor.settings.template import commented

ROOT = Path(__file__).parents[2]
CONFIG = """\
[server]
port = 9000
cors_origins = ["https://a.example"]

[defaults]
context = 4096
idle_unload = "never"

[models."a b"]
aliases = ["gpt 4"]
context = 2048
sampling = { top_p = 0.5 }
adapters = { "x y" = "/folder" }
"""


def load(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "config.toml").write_text(text)
    return load_settings(folder / "config.toml", environ=environ, flags={"memory.spare": False})


def find(values: list[ShownValue], table: str, key: str) -> ShownValue:
    (found,) = [value for value in values if (value.table, value.key) == (table, key)]
    return found


def test_each_value_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    values = shown_values(load(tmp_path, CONFIG, MLX_SUPERVISOR_SERVER_MAX_BODY="1MiB"))
    assert find(values, "server", "host") == ShownValue("server", "host", '"127.0.0.1"', "default")
    assert find(values, "server", "port") == ShownValue("server", "port", "9000", "file", f"{file}:2")
    assert find(values, "server", "max_body") == ShownValue(
        "server", "max_body", '"1MiB"', "environment", "MLX_SUPERVISOR_SERVER_MAX_BODY"
    )
    assert find(values, "memory", "spare") == ShownValue("memory", "spare", "false", "flag")
    model = 'models."a b"'
    assert find(values, model, "context") == ShownValue(model, "context", "2048", "file", f"{file}:11")
    assert find(values, model, "idle_unload") == ShownValue(
        model, "idle_unload", '"never"', "file", f"{file}:7", inherited=True
    )
    assert find(values, model, "sampling.temperature").value is None


def test_what_is_shown_is_a_configuration_that_makes_the_same(tmp_path: Path) -> None:
    settings = load(tmp_path, CONFIG)
    for origins in (False, True):
        again = tmp_path / f"again-{origins}"
        again.mkdir()
        shown = load(again, as_toml(shown_values(settings), origins=origins))
        assert (shown.server, shown.memory, shown.defaults) == (
            settings.server,
            settings.memory,
            settings.defaults,
        )
        assert shown.models == settings.models


KEYS = {".".join(key.path): key for key in [*fixed_keys(), *model_keys("m")]}


@given(
    size_bytes=st.integers(0, 2**50),
    seconds=st.integers(1, 10**7),
    text=st.text(st.characters(codec="utf-8")),
)
def test_every_value_is_read_as_it_is_written(size_bytes: int, seconds: int, text: str) -> None:
    """A million seconds were written as 1e+06s, which nobody reads."""
    assert parse_size(json.loads(written_value(KEYS["server.max_body"], size_bytes))) == size_bytes
    assert parse_duration(json.loads(written_value(KEYS["defaults.idle_unload"], float(seconds)))) == seconds
    aliases = written_value(KEYS["models.m.aliases"], (text, "b"))
    adapters = written_value(KEYS["models.m.adapters"], {text: text})
    assert tomllib.loads(f"x = {aliases}\ny = {adapters}") == {"x": [text, "b"], "y": {text: text}}


def test_the_first_file_changes_nothing(tmp_path: Path) -> None:
    settings = load(tmp_path, commented())
    assert settings == load_settings(tmp_path / "none.toml", environ={}, flags={"memory.spare": False})


def test_every_line_of_the_first_file_may_be_switched_on(tmp_path: Path) -> None:
    """What is commented out is a setting as it may stand there."""
    lines = re.findall(r"^# ([a-z_]+(?:\.[a-z_]+)* = .+)$", commented(), re.MULTILINE)
    names = [line.partition(" =")[0] for line in lines]
    assert len(names) == len([*fixed_keys(), *(key for key in model_keys("m") if key.one_model)])
    for line in lines:
        tomllib.loads(line)


def test_the_schema_is_up_to_date_and_knows_every_key() -> None:
    written = json.loads((ROOT / "deploy" / "config.schema.json").read_text())
    assert written == schema(), "run: make reference"
    for key in [*fixed_keys(), *model_keys("m")]:
        table = written["properties"][key.path[0]]
        if key.path[0] == "models":
            table = table["additionalProperties"]
        for name in key.path[1 if key.path[0] != "models" else 2 :]:
            table = table["properties"][name]
        assert table["description"] == key.doc

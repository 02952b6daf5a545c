"""Settings: what is accepted, what is refused and in which words, and who wins."""

import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from supervisor.settings import ModelSettings, Origin, Settings, SettingsError, load_settings
from supervisor.settings.keys import fixed_keys, model_keys


def load(tmp_path: Path, text: str, **environ: str) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_settings(path, environ=environ)


def refused(tmp_path: Path, text: str, **environ: str) -> list[str]:
    """The problems, without the folder in front of the file's name."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


EVERYTHING = """
[server]
host = "::1"
port = 9000
allowed_hosts = ["mac.local"]
cors_origins = ["https://chat.example", "http://localhost:3000"]
max_body = "1GiB"
fallback_model = "qwen3-8b"

[memory]
spare = false
budget = "48GiB"
prompt_cache = "4GiB"
saved_state = "20GB"

[watch]
silence = "5s"
stall = "1m"
drain = "2s"
kill_grace = "500ms"

[defaults]
idle_unload = "2h"
max_concurrency = 4
queue = 7
context = 8192
sampling = { temperature = 0.5, top_p = 0.9 }
thinking = false

[models."qwen3-8b"]
source = "mlx-community/Qwen3-8B-4bit"
aliases = ["gpt-4o-mini", "claude-haiku"]
pin = true
idle_unload = "never"
sampling.temperature = 1
sampling.top_k = 40

[models.small]
preload = true
thinking = "low"
"""


def test_nothing_written_means_defaults(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "config.toml", environ={}, flags={})
    assert settings == Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert settings.for_model("anything") == ModelSettings()


def test_every_key_is_read_in_bytes_and_seconds(tmp_path: Path) -> None:
    settings = load(tmp_path, EVERYTHING)
    assert (settings.server.host, settings.server.port) == ("::1", 9000)
    assert settings.server.max_body_bytes == 2**30
    assert settings.server.cors_origins == ("https://chat.example", "http://localhost:3000")
    assert (settings.memory.spare, settings.memory.budget) == (False, "48GiB")
    assert settings.memory.prompt_cache_bytes == 4 * 2**30
    assert settings.memory.saved_state_bytes == 20 * 10**9
    watch = settings.watch
    assert (watch.silence_s, watch.stall_s, watch.drain_s, watch.kill_grace_s) == (5, 60, 2, 0.5)


def test_a_model_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    settings = load(tmp_path, EVERYTHING)
    model = settings.for_model("qwen3-8b")
    assert (model.pin, model.preload, model.aliases) == (True, False, ("gpt-4o-mini", "claude-haiku"))
    assert math.isinf(model.idle_unload_s)
    assert (model.max_concurrency, model.queue, model.context) == (4, 7, 8192)
    # Sampling is inherited key by key, not as a whole.
    assert (model.sampling.temperature, model.sampling.top_p, model.sampling.top_k) == (1.0, 0.9, 40)
    assert settings.for_model("small").preload
    assert (model.thinking, settings.for_model("small").thinking) == (False, "low")
    assert settings.for_model("unnamed") == settings.defaults


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[server]\nport = 1\nhost = "localhost"\n[memory]\nmax_waiting = 5\n')
    environ = {"MLX_SUPERVISOR_SERVER_PORT": "2", "MLX_SUPERVISOR_MEMORY_MAX_WAITING": "6"}
    settings = load_settings(path, environ=environ, flags={"server.port": 3})
    assert (settings.server.port, settings.memory.max_waiting, settings.server.host) == (3, 6, "localhost")
    assert settings.memory.spare
    assert settings.origins == {
        "server.port": Origin("flag"),
        "memory.max_waiting": Origin("environment", "MLX_SUPERVISOR_MEMORY_MAX_WAITING"),
        "server.host": Origin("file", f"{path}:3"),
    }


def test_the_environment_sets_every_scalar(tmp_path: Path) -> None:
    written = {
        "text": "localhost",
        "switch": "true",
        "thinking": "True",
        "whole number": "16",
        "number": "0.5",
        "size": "2MiB",
        "duration": "60s",
        "budget": "60%",
    }
    keys = [key for key in fixed_keys() if key.variable]
    assert len(keys) > 15
    environ = {
        key.variable: key.choices[-1] if key.choices else written[key.kind] for key in keys if key.variable
    }
    settings = load(tmp_path, "", **environ)
    assert set(settings.origins) == {".".join(key.path) for key in keys}
    assert settings.server.max_body_bytes == 2 * 2**20
    assert settings.defaults.sampling.min_p == 0.5
    assert settings.defaults.thinking is True
    assert settings.log.format == "json"


def test_a_choice_is_one_of_those_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'log\.format must be "text" or "json", not "xml"'):
        load(tmp_path, '[log]\nformat = "xml"\n')


def test_an_empty_variable_is_no_setting(tmp_path: Path) -> None:
    assert load(tmp_path, "", MLX_SUPERVISOR_SERVER_PORT="").server.port == 8080


def test_models_named_at_the_start_are_preloaded(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[models.big]\naliases = ["b"]\n[models.pet]\npin = true\n')
    settings = load_settings(path, environ={}, preload=["b", "big", "pet"])
    assert settings.preload == ("big", "pet")
    assert load_settings(path, environ={}, preload=["other"]).preload == ("other",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\nprot = 1", "config.toml:2: server.prot is not a setting; did you mean server.port?"),
        ("[sever]\nport = 1", "config.toml:1: sever is not a setting; did you mean server?"),
        ("port = 1", "config.toml:1: port is not a setting; did you mean server.port?"),
        ("zzz = 1", "config.toml:1: zzz is not a setting"),
        ("[modles.a]\npin = true", "config.toml:1: modles is not a setting; did you mean models?"),
        ("[models.a]\nbogus = 1", "config.toml:2: models.a.bogus is not a setting"),
        (
            "[memory]\nbudget = 8",
            'config.toml:2: memory.budget must be a size such as "48GiB", a share of the memory such as '
            '"60%", or "auto", at least 1MiB, not 8',
        ),
        ("server = 3", "config.toml:1: server must be a table, [server], not 3"),
        ("[[server]]\nport = 1", 'config.toml:1: server must be a table, [server], not [{"port": 1}]'),
        (
            '[server]\n\nport = "eighty"',
            'config.toml:3: server.port must be a whole number from 0 to 65535, not "eighty"',
        ),
        (
            "server.port = 65536",
            "config.toml:1: server.port must be a whole number from 0 to 65535, not 65536",
        ),
        ("server.port = true", "config.toml:1: server.port must be a whole number from 0 to 65535, not true"),
        ("server.port = 80.0", "config.toml:1: server.port must be a whole number from 0 to 65535, not 80.0"),
        ("[memory]\nspare = 1", "config.toml:2: memory.spare must be true or false, not 1"),
        (
            '[server]\nmax_body = "64 potatoes"',
            'config.toml:2: server.max_body must be a size such as "64MiB" from 1KiB to 1TiB, '
            'not "64 potatoes"',
        ),
        (
            "[defaults]\nidle_unload = 30",
            'config.toml:2: defaults.idle_unload must be a duration such as "90s", "30m" or "2h" from 1s to '
            '365d, or "never", not 30',
        ),
        (
            '[watch]\nsilence = "never"',
            'config.toml:2: watch.silence must be a duration such as "90s", "30m" or "2h" from 1s to 1h, '
            'not "never"',
        ),
        (
            '[server]\nallowed_hosts = "mac.local"',
            'config.toml:2: server.allowed_hosts must be a list of texts such as ["a", "b"], not "mac.local"',
        ),
        (
            "[defaults]\nsampling = { temperature = 0.7, top_q = 3 }",
            "config.toml:2: defaults.sampling.top_q is not a setting; did you mean defaults.sampling.top_p?",
        ),
        (
            "[defaults.sampling]\ntop_p = nan",
            "config.toml:2: defaults.sampling.top_p must be a number from 0 to 1, not NaN",
        ),
        (
            "[defaults]\npin = true",
            'config.toml:2: defaults.pin is not a setting: pin belongs to one model, under [models."ID"]',
        ),
        (
            '[models."q 3".sampling]\n\ntop_k = -1',
            'config.toml:3: models."q 3".sampling.top_k must be a whole number from 0 to 2147483647, not -1',
        ),
        ("models = 3", "config.toml:1: models must be a table, [models], not 3"),
        ("[models]\nq = 3", "config.toml:2: models.q must be a table, [models.q], not 3"),
        (
            "[server]\nport = 1979-05-27",
            "config.toml:2: server.port must be a whole number from 0 to 65535, not 1979-05-27",
        ),
        (
            '[server]\nhost = "0.0.0.0"',
            "config.toml:2: server.host 0.0.0.0 lets other machines in, and nobody would have to log in; if "
            "that is what you want, add --insecure (or server.insecure = true)",
        ),
        (
            '[models.a]\n[models.b]\naliases = ["x", "a"]',
            "config.toml:3: the alias 'a' of 'b' is the id of a model; choose another",
        ),
        (
            '[models.a]\naliases = ["x"]\n[models.b]\naliases = ["x"]',
            "config.toml:4: the alias 'x' is used twice, by 'a' and 'b'",
        ),
        ('[models.a]\naliases = ["x", "x"]', "config.toml:2: the alias 'x' is used twice"),
        (
            '[models.""]',
            "config.toml:1: '' can't be a model id; names have 1 to 256 bytes, and no control characters or "
            "spaces around them",
        ),
        (
            '[memory]\nbudget = "lots"',
            'config.toml:2: memory.budget must be a size such as "48GiB", a share of the memory such as '
            '"60%", or "auto", at least 1MiB, not "lots"',
        ),
        (
            '[memory]\nbudget = "120%"',
            'config.toml:2: memory.budget must be a size such as "48GiB", a share of the memory such as '
            '"60%", or "auto", at least 1MiB, not "120%"',
        ),
        (
            '[models.a]\nadapters = ["~/sql"]',
            'config.toml:2: models.a.adapters must be a table of texts such as { a = "b" }, not ["~/sql"]',
        ),
        (
            '[models.a]\nadapters = { sql = "sql" }',
            "config.toml:2: the adapter 'sql' must be a folder such as \"~/adapters/sql\", not 'sql'",
        ),
        (
            '[models.a.adapters]\nnone = "/sql"',
            "config.toml:2: 'none' can't be an adapter's name; names have 1 to 256 bytes, and no control "
            'characters or spaces around them, and "none" is none',
        ),
        (
            '[defaults]\nthinking = "deep"',
            "config.toml:2: defaults.thinking must be true, false or an effort (minimal, low, medium, high, "
            'xhigh, max), not "deep"',
        ),
        (
            '[memory]\nsaved_state = "much"',
            'config.toml:2: memory.saved_state must be a size such as "64MiB" from 0 to 1024TiB, not "much"',
        ),
        ("[server]\nport = 1\nport = 2", "config.toml:3: not valid TOML: cannot overwrite a value"),
        ('[server]\nhost = "', "config.toml:2: not valid TOML: unterminated string"),
    ],
)
def test_wrong_settings_are_named_with_file_line_and_key(tmp_path: Path, text: str, problem: str) -> None:
    """Fault 15: a broken config at start names file, line, key."""
    assert refused(tmp_path, text) == [problem]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    problems = refused(tmp_path, "[server]\nport = -1\nprot = 1\n", MLX_SUPERVISOR_WATCH_DRAIN="soon")
    assert [problem.partition(" ")[0] for problem in problems] == [
        "config.toml:2:",
        "config.toml:3:",
        "MLX_SUPERVISOR_WATCH_DRAIN:",
    ]


def test_a_misspelled_variable_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "", MLX_SUPERVISOR_SERVER_PROT="1") == [
        "MLX_SUPERVISOR_SERVER_PROT: no setting has this variable; did you mean MLX_SUPERVISOR_SERVER_PORT?"
    ]


def test_other_peoples_variables_are_left_alone(tmp_path: Path) -> None:
    environ = {"MLX_SUPERVISOR_HOME": "/x", "MLX_SUPERVISOR": "1", "PATH": "/bin"}
    assert load(tmp_path, "", **environ) == Settings()


def test_a_wrong_flag_is_said_to_come_from_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"command line: server\.port must be a whole number"):
        load_settings(tmp_path / "config.toml", environ={}, flags={"server.port": 70000})


def test_insecure_allows_other_machines(tmp_path: Path) -> None:
    assert load(tmp_path, '[server]\nhost = "0.0.0.0"\ninsecure = true').server.host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LocalHost"])
def test_loopback_needs_nothing(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, f'[server]\nhost = "{host}"').server.host == host


@pytest.mark.parametrize("host", ["", " ", "[::1]", "http://x", "a b", "127.0.0.1:80", "a/b"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    assert "server.host must be" in refused(tmp_path, f'[server]\nhost = "{host}"\ninsecure = true')[0]


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(SettingsError, match=r"config\.toml: there is no such file"):
        load_settings(path, environ={}, required=True)
    path.write_bytes(b"[server]\n# caf\xe9\n")
    with pytest.raises(SettingsError, match=r"config\.toml:2: not UTF-8"):
        load_settings(path, environ={})
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(SettingsError, match="larger than 1 MiB"):
        load_settings(path, environ={})
    with pytest.raises(SettingsError, match="can't be read: Is a directory"):
        load_settings(tmp_path, environ={})
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(path, environ={})


def test_a_long_value_is_cut_and_cleaned_in_the_message(tmp_path: Path) -> None:
    problem = refused(tmp_path, f'server.port = "\\u001b[31m{"x" * 500}"')[0]
    assert len(problem) < 160
    assert problem.isprintable()


def test_every_key_says_what_it_is() -> None:
    for key in [*fixed_keys(), *model_keys("m")]:
        assert key.doc.endswith("."), key.path
        assert key.form()
        if key.default is not None and key.kind not in ("size", "duration"):
            assert (
                key.read(list(key.default) if isinstance(key.default, tuple) else key.default) == key.default
            )


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]


def test_settings_can_be_shown_as_json() -> None:
    """`never` is infinite in the struct; JSON has no infinity, so whoever shows it must not lie."""
    assert json.loads(msgspec.json.encode(ModelSettings()))["idle_unload"] == 1800.0


def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")
    with pytest.raises(SettingsError, match="can't be read: Permission denied"):
        load_settings(path, environ={})


def test_tables_of_values_are_inherited_entry_by_entry(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [defaults]
        set = { user = "house", seed = 1 }
        strip = ["logit_bias"]
        chat_template_kwargs.enable_thinking = false

        [models.a.set]
        seed = 2
        extra = { deep = [1, 2.5, true] }

        [models.b]
        strip = []
        """,
    )
    assert settings.models["a"].set == {"user": "house", "seed": 2, "extra": {"deep": [1, 2.5, True]}}
    assert settings.models["a"].strip == ("logit_bias",)
    assert settings.models["b"].set == {"user": "house", "seed": 1}
    assert settings.models["b"].strip == ()
    assert settings.for_model("other").chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models.a]\nset = { model = 'b' }", "config.toml:2: models.a.set can't have 'model'"),
        ("[defaults]\n\nstrip = ['stream']", "config.toml:3: defaults.strip can't have 'stream'"),
        ("[models.a]\nset = { when = 2026-01-01 }", "config.toml:2: models.a.set must be a table"),
        ("[models.a]\nset = { n = inf }", "config.toml:2: models.a.set must be a table"),
        ("[models.a]\nset = 1", "config.toml:2: models.a.set must be a table"),
        (
            "[defaults]\nchat_template_kwargs = { messages = [] }",
            "config.toml:2: defaults.chat_template_kwargs can't have 'messages'",
        ),
        ("[models.a]\nchat_template = 'x.jinja'", "config.toml:2: models.a.chat_template must be a file"),
        ("[catalog]\nfolders = ['']", "config.toml:2: catalog.folders has an empty name"),
        ("[catalog]\nfolder = ['x']", "did you mean catalog.folders?"),
    ],
)
def test_what_requests_and_places_can_not_be_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)

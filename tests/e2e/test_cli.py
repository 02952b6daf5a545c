"""The command line against the running program, with fake workers behind it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shared import __version__
from shared.status import FailureKind
from tests.fixtures import nursery
from tests.fixtures.fake_shapes import Load
from tests.fixtures.harness import CLI, FAKE_SUPERVISOR, Service, wait_until
from tests.fixtures.models import models_config, write_fake_model
from tests.fixtures.nursery import ROOT
from tests.fixtures.tiny import Tiny, write_tiny


def with_models(base: Path) -> Service:
    """A supervisor over three fake models, one of which can't be loaded."""
    folders = {name: write_fake_model(base / "models" / name) for name in ("qwen-small", "llama")}
    folders["broken"] = write_fake_model(base / "models" / "broken", Load(fail=FailureKind.UNSUPPORTED))
    config = models_config(**folders).replace(
        "[models.llama]\n", '[models.llama]\naliases = ["gpt-4o-mini"]\n'
    )
    return Service(base / "home", fake=True, config=config + "[memory]\nspare = false\n")


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with with_models(tmp_path_factory.mktemp("cli")) as service:
        yield service


@pytest.fixture
def service(shared_service: Service) -> Service:
    """A running supervisor with nothing loaded."""
    for worker in shared_service.engine()["workers"]:
        shared_service.client.post(f"/api/models/{worker['id']}/unload").raise_for_status()
    return shared_service


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """One that a test may stop."""
    with with_models(tmp_path) as service:
        yield service


def said(ran: subprocess.CompletedProcess[str]) -> str:
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def refused(ran: subprocess.CompletedProcess[str]) -> str:
    """The sentence of a verb that was refused."""
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("mlx-supervisor: ") and ran.stderr.count("\n") == 1
    return ran.stderr.removeprefix("mlx-supervisor: ").strip()


def test_start_says_in_one_line_where_it_serves(service: Service) -> None:
    # It answers a moment before it says so.
    wait_until(lambda: "\n" in service.output(), "nothing is said")
    lines = service.output().splitlines()
    assert len(lines) == 1
    assert service.url in lines[0]
    assert "llama" in lines[0]
    assert str(service.home) in lines[0]


def test_status_and_what_is_loaded(service: Service) -> None:
    shown = said(service.cli("status"))
    assert f"serving on {service.url}/v1" in shown
    assert f"pid {service.pid}, version {__version__}" in shown
    assert "none loaded" in shown
    assert "no model is loaded" in said(service.cli("ps"))
    assert said(service.cli("load", "qwen-small")) == "qwen-small is ready\n"
    worker = service.worker("qwen-small")
    assert worker is not None
    head, row, total = said(service.cli("ps")).splitlines()
    assert head.split("  ")[0] == "MODEL"
    size = r"[\d.]+ [MG]iB"
    # It is held for the first five seconds.
    state = rf"ready +(?:held|idle, leaves in 29m \d+s) +{worker['pid']}"
    assert re.fullmatch(rf"qwen-small +{state} +{size} +{size} +{size} +{size} +0 +0 +[\d.]+s +0", row)
    assert re.fullmatch(rf"{size} of {size} are taken", total)
    assert "qwen-small (ready)" in said(service.cli("status"))
    status = json.loads(said(service.cli("status", "--json")))
    assert status["running"] is True
    assert status["pid"] == service.pid
    engine = json.loads(said(service.cli("ps", "--json")))
    assert [worker["id"] for worker in engine["workers"]] == ["qwen-small"]


def test_list_shows_every_model_and_its_state(service: Service) -> None:
    service.cli("load", "llama")
    rows = {line.split()[0]: line for line in said(service.cli("list")).splitlines()}
    assert set(rows) == {"MODEL", "qwen-small", "llama", "broken"}
    assert "ready" in rows["llama"] and "gpt-4o-mini" in rows["llama"]
    assert "ready" not in rows["qwen-small"]
    models = json.loads(said(service.cli("list", "--json")))["models"]
    assert {model["id"] for model in models} == {"qwen-small", "llama", "broken"}


def test_load_by_alias_and_unload(service: Service) -> None:
    assert said(service.cli("load", "gpt-4o-mini")) == "llama is ready\n"
    worker = service.worker("llama")
    assert worker is not None
    said(service.cli("unload", "gpt-4o-mini"))
    assert service.worker("llama") is None
    assert not psutil.pid_exists(worker["pid"])
    # Nothing to unload is fine: the model is where it was wanted.
    said(service.cli("unload", "llama"))


def test_wrong_names_get_near_ones(service: Service) -> None:
    for verb in ("load", "unload"):
        assert "qwen-small" in refused(service.cli(verb, "qwen-smal"))
    assert "does not exist" in refused(service.cli("load", "../../etc/passwd"))


def test_a_model_that_cannot_be_loaded_says_why(service: Service) -> None:
    assert "the fake worker was told to fail" in refused(service.cli("load", "broken"))
    shown = said(service.cli("ps"))
    assert "failed" in shown
    assert "mlx-supervisor load broken" in shown


def test_a_model_that_is_given_up_says_why(service: Service) -> None:
    """`ps` said that it had died too often, of one that was tried once."""
    assert service.chat("broken").status_code == 502
    (told,) = [line for line in said(service.cli("ps")).splitlines() if line.startswith("broken is")]
    assert re.fullmatch(
        r"broken is given up: .*told to fail.*; to try again: mlx-supervisor load broken", told
    )
    (reason,) = service.client.get("/health").json()["reasons"]
    assert reason.startswith("model broken failed: ") and "told to fail" in reason


def test_chat_once(service: Service) -> None:
    ran = service.cli("chat", "gpt-4o-mini", "-p", "Hello")
    assert said(ran).strip()
    # The only model that is loaded is the one that is meant.
    assert said(service.cli("chat", "-p", "Hello")).strip()
    assert "qwen-small" in refused(service.cli("chat", "qwen-smal", "-p", "Hello"))


def test_chat_without_a_name_asks_which(service: Service) -> None:
    assert "say which model" in refused(service.cli("chat", "-p", "Hello"))


def test_stop_returns_when_it_is_really_gone(own_service: Service) -> None:
    said(own_service.cli("load", "llama"))
    workers = own_service.workers()
    assert workers
    assert said(own_service.cli("stop")) == "stopped\n"
    assert own_service.process is not None
    assert own_service.process.wait(10) == 0
    assert not any(worker.is_running() for worker in workers)
    for verb in ("stop", "status", "ps"):
        sentence = refused(own_service.cli(verb))
        assert sentence.endswith(f"start it with: mlx-supervisor start --home {own_service.home}")
    status = own_service.cli("status", "--json")
    assert status.returncode == 1
    assert json.loads(status.stdout) == {"running": False, "home": str(own_service.home)}


def test_stop_of_a_supervisor_that_does_not_listen(own_service: Service) -> None:
    """It holds the lock, so its pid is known, and SIGTERM is heard."""
    (own_service.home / "run" / "control.sock").unlink()
    assert "does not answer" in refused(own_service.cli("ps"))
    assert said(own_service.cli("stop")) == "stopped\n"


# Starts that are refused: nothing is spawned, exit code 1, one sentence.


def start(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return nursery.run(FAKE_SUPERVISOR, "start", "--home", str(home), *arguments, env=os.environ | environ)


def test_a_second_start_names_the_first(service: Service) -> None:
    sentence = refused(start(service.home, "--port", "0"))
    assert f"pid {service.pid}" in sentence
    assert said(service.cli("status"))


def test_a_taken_port_is_named(service: Service, tmp_path: Path) -> None:
    port = service.url.rpartition(":")[2]
    assert f"port {port}" in refused(start(tmp_path / "other", "--port", port))
    assert list((tmp_path / "other" / "run").glob("*.sock")) == []


def test_a_broken_configuration_is_told_line_by_line(tmp_path: Path) -> None:
    """Fault 15."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[server]\nprot = 1\nport = 99999\n")
    ran = start(home)
    assert ran.returncode == 1
    assert f"{home}/config.toml:2: server.prot is not a setting; did you mean server.port?" in ran.stderr
    assert f"{home}/config.toml:3: server.port must be a whole number" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_other_refusals(tmp_path: Path) -> None:
    assert "no such file" in refused(start(tmp_path / "a", "--config", str(tmp_path / "none.toml")))
    assert "--insecure" in refused(start(tmp_path / "a", "--host", "0.0.0.0"))
    assert "command line: server.port" in refused(start(tmp_path / "a", "--port", "-1"))
    assert "did you mean" in refused(start(tmp_path / "a", MLX_SUPERVISOR_SERVER_PROT="1"))
    (tmp_path / "open").mkdir(mode=0o755)
    assert "chmod 700" in refused(start(tmp_path / "open"))


def test_a_model_to_load_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "nonsense" in refused(start(tmp_path / "a", "--port", "0", "--model", "nonsense"))


def test_models_named_at_the_start_are_loaded_at_once(tmp_path: Path) -> None:
    """By the id of its folder, too: `there is no such model, only the fallback a` was the answer."""
    write_fake_model(tmp_path / "home" / "models" / "org" / "model")
    for folder in (tmp_path / "home", tmp_path / "home" / "models"):
        folder.chmod(0o700)
    config = models_config(broken=tmp_path / "nowhere") + "[models.a]\nsource = 'org/model'\n"
    with Service(tmp_path / "home", fake=True, config=config, arguments=("--model", "org/model")) as service:
        wait_until(lambda: (service.worker("a") or {}).get("state") == "ready", "the model is not loaded")
        # What can't be loaded is not among the models that it boasts of.
        assert "models: a (1 can't be loaded: mlx-supervisor list)" in service.output()
        assert "broken can't be loaded: its folder does not exist" in service.output()
        assert service.cli("config", "check").stdout.splitlines()[1:] == [
            "broken can't be loaded: its folder does not exist"
        ]


def test_python_m_is_the_console_script(service: Service) -> None:
    """As it is typed, with imports of its own."""
    for program in (CLI, [str(Path(sys.executable).with_name("mlx-supervisor"))]):
        for words, told in (
            (["--version"], f"mlx-supervisor {__version__}"),
            (["status", "--home", str(service.home)], f"pid {service.pid}, version {__version__}"),
        ):
            ran = subprocess.run(
                [*program, *words], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
            )
            assert told in said(ran)


def test_the_settings_are_written_checked_and_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def config(*words: str) -> subprocess.CompletedProcess[str]:
        return nursery.run("supervisor", "config", *words, "--home", str(home))

    path = Path(config("path").stdout.strip())
    assert path == home / "config.toml" and not path.exists()
    assert config("init").returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600
    again = config("init")
    assert again.returncode == 1 and "--force" in again.stderr
    assert config("check").returncode == 0
    path.write_text("[server]\nprot = 1\n")
    wrong = config("check")
    assert wrong.returncode == 1 and f"{path}:2: server.prot is not a setting" in wrong.stderr
    # What a start would refuse although each value is right.
    write_tiny(home / "models" / "tiny", Tiny(context=2048))
    (home / "models").chmod(0o700)
    path.write_text("[memory]\nbudget = '1MiB'\n[models.tiny]\npin = true\n")
    wrong = config("check")
    assert wrong.returncode == 1 and f"{path}:4: the pinned models need" in wrong.stderr
    fit = nursery.run("supervisor", "fit", "tiny", "--home", str(home))
    assert "tiny does not fit " in fit.stdout and "where models may take 1.0 MiB" in fit.stdout
    path.write_text("[server]\nport = 7\n")
    shown = json.loads(config("show", "--json").stdout)
    assert {
        "table": "server",
        "key": "port",
        "value": "7",
        "source": "file",
        "where": f"{path}:2",
    }.items() <= (next(value for value in shown if value["key"] == "port").items())


def test_the_settings_of_a_running_supervisor_tell_its_flags(shared_service: Service) -> None:
    shown = said(shared_service.cli("config", "show", "--origin"))
    assert re.search(r"^port = 0 +# command line$", shown, re.MULTILINE)


def test_logs_show_what_happened_and_what_a_worker_said(service: Service) -> None:
    service.cli("load", "llama")

    def logs(*words: str) -> subprocess.CompletedProcess[str]:
        return service.cli("logs", *words)

    assert "worker.ready" in logs("-n", "5").stdout
    assert "supervisor.starting" in logs("--since", "1h").stdout
    assert logs("--since", "2099-01-01").stdout == ""
    assert logs("gpt-4o-mini").returncode == 0, "an alias means its model"
    wrong = logs("lama")
    assert wrong.returncode == 1 and "did you mean llama?" in wrong.stderr
    never = logs("--since", "yesterday")
    assert never.returncode == 1 and "10m" in never.stderr


def test_quickstart_has_the_right_address_and_model_and_its_curl_works(service: Service) -> None:
    shown = json.loads(service.cli("quickstart", "gpt-4o-mini", "--json").stdout)
    assert (shown["url"], shown["model"]) == (service.url, "gpt-4o-mini")
    answer = subprocess.run(
        ["bash", "-c", shown["snippets"]["curl"]], capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
    for name, text in shown["snippets"].items():
        if name.startswith("Python"):
            compile(text, name, "exec")
    wrong = service.cli("quickstart", "gpt-4o-mimi")
    assert wrong.returncode == 1 and "Did you mean gpt-4o-mini?" in wrong.stderr


def test_quickstart_knows_the_models_and_the_port_of_a_supervisor_that_is_not_started(tmp_path: Path) -> None:
    """It named a model that nobody had, whatever it was asked for, at a port that config.toml didn't name."""
    home = tmp_path / "home"
    for folder in (home, home / "run", home / "models"):
        folder.mkdir(mode=0o700)
    write_tiny(home / "models" / "tiny", Tiny())
    (home / "config.toml").write_text('[server]\nport = 8765\n[models.tiny]\naliases = ["claude-*"]\n')

    def quickstart(*names: str) -> subprocess.CompletedProcess[str]:
        return nursery.run("supervisor", "quickstart", *names, "--json", "--home", str(home))

    shown = json.loads(said(quickstart()))
    assert (shown["url"], shown["model"]) == ("http://127.0.0.1:8765", "tiny")
    assert json.loads(said(quickstart("claude-haiku-4")))["model"] == "claude-haiku-4"
    assert "The model 'tinny' does not exist here. Did you mean tiny?" in refused(quickstart("tinny"))


def test_the_shell_completes_verbs_and_models(service: Service) -> None:
    def complete(words: str) -> list[str]:
        environ = {
            **os.environ,
            "_MLX_SUPERVISOR_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "MLX_SUPERVISOR_HOME": str(service.home),
        }
        return nursery.run("supervisor", env=environ).stdout.split()

    assert "unload" in complete("mlx-supervisor un")
    assert complete("mlx-supervisor load q") == ["qwen-small"]
    assert complete("mlx-supervisor load gp") == ["gpt-4o-mini"]


def test_fit_asks_the_supervisor_and_needs_none(service: Service, tmp_path: Path) -> None:
    # What the fake models' config.json says is too little for an estimate.
    assert "llama: its config.json" in refused(service.cli("fit", "gpt-4o-mini"))
    write_tiny(service.home / "models" / "org" / "tiny", Tiny(context=2048))
    service.client.post("/api/catalog/refresh").raise_for_status()
    running = said(service.cli("fit", "org/tiny", "--ctx", "100", "--machines"))
    assert "org/tiny fits with 100 tokens on this " in running
    assert "longest context here: 2048 tokens" in running
    assert "Apple M5 Max" in running
    beyond = [service.cli("fit", "org/tiny", "--ctx", "2049")]
    # The same of a folder, and with nobody running.
    elsewhere = tmp_path / "home"
    folder = write_tiny(elsewhere / "models" / "tiny", Tiny(context=2048))
    for path in (elsewhere, elsewhere / "models", elsewhere / "run"):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)
    for model in ("tiny", str(folder)):
        found = json.loads(said(alone(elsewhere, "fit", model, "--json")))
        assert (found["here"]["fits"], found["here"]["largest_context"]) == (True, 2048)
        beyond.append(alone(elsewhere, "fit", model, "--ctx", "2049"))
    for ran in beyond:
        # As any other bad value; the answer was that of the model's whole window, in silence.
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "Invalid value for '--ctx': " in ran.stderr
        assert "tiny takes at most 2048 tokens, prompt and answer together; 2049 are more" in ran.stderr
    shutil.rmtree(service.home / "models" / "org")
    service.client.post("/api/catalog/refresh").raise_for_status()


def test_top_without_a_terminal_prints_what_there_is_and_ends(service: Service) -> None:
    """It printed nothing, and went on doing so."""
    name = "qwen-small"
    service.client.post(f"/api/models/{name}/load").raise_for_status()
    for arguments in ([], ["--once"]):
        shown = said(service.cli("top", "--interval", "0.2", *arguments))
        assert service.url in shown.splitlines()[0]
        (row,) = [line for line in shown.splitlines() if line.startswith(name)]
        assert row.split()[:2] == [name, "ready"]
        assert "\x1b" not in shown and "…" not in shown


def alone(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb with a state folder with which no supervisor runs."""
    return nursery.run("supervisor", *words, "--home", str(home))


def test_list_and_info_need_no_supervisor_and_say_what_one_would(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "no supervisor runs with" in refused(alone(home, "info", "tiny"))
    config = models_config(tiny=write_tiny(tmp_path / "tiny", Tiny(context=2048))) + 'aliases = ["small"]\n'
    with Service(home, fake=True, config=config, arguments=("--no-spare",)) as service:
        running = [json.loads(said(service.cli(*words, "--json"))) for words in (["list"], ["info", "small"])]
    assert running[1]["id"] == "tiny" and running[1]["context"] == 2048
    now = [json.loads(said(alone(home, *words, "--json"))) for words in (["list"], ["info", "small"])]
    assert now == running
    assert "Did you mean small?" in refused(alone(home, "info", "smal"))
    assert "tiny" in said(alone(home, "list")) and "not loaded" in said(alone(home, "info", "tiny"))
    (home / "config.toml").write_text("[server]\nprot = 1\n")
    assert "config.toml:2: server.prot is not a setting" in refused(alone(home, "list"))


@pytest.mark.parametrize("verb", ["load", "unload", "fit", "info"])
def test_a_name_that_nobody_knows_gets_the_near_ones(service: Service, verb: str) -> None:
    assert "Did you mean qwen-small?" in refused(service.cli(verb, "qwen-smal"))


def test_log_lines_that_a_full_disk_cost_are_told(tmp_path: Path) -> None:
    """A folder in the log's place refuses each line, as a full disk does."""
    folder = write_fake_model(tmp_path / "model", Load(stderr=("one", "two")))
    config = models_config(chatty=folder) + "[memory]\nspare = false\n"
    with Service(tmp_path / "home", fake=True, config=config) as service:
        (service.home / "logs" / "worker-chatty.log").mkdir()
        assert service.chat("chatty").status_code == 200
        assert "2 log lines are lost" in said(service.cli("status"))
        assert "warn  logs           2 lines could not be written" in said(service.cli("doctor", "--quick"))
        assert 'lost_log_lines_total{model="chatty"} 2.0' in service.client.get("/metrics").text

"""Settings that change while everything goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.status import FailureKind
from tests.fixtures.fake_shapes import Load
from tests.fixtures.harness import Service, chat_body, wait_until
from tests.fixtures.models import models_config, write_fake_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reload")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Service]:
    # With a model from the start, so that no starter is imported.
    config = models_config(a=write_fake_model(folder / "a"))
    with Service(folder / "home", fake=True, config=config, arguments=("--no-spare",)) as service:
        yield service


@pytest.fixture
def service(running: Service, folder: Path) -> Service:
    """With the models a and b, and nothing loaded."""
    write(running, models_config(**{name: write_fake_model(folder / name, Load()) for name in "ab"}))
    assert running.cli("reload").returncode == 0
    for name in "abc":
        running.client.post(f"/api/models/{name}/unload")
    return running


def write(service: Service, config: str) -> None:
    (service.home / "config.toml").write_text(config)


def reload(service: Service) -> str:
    done = service.cli("reload")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_come_and_go(service: Service, folder: Path) -> None:
    assert service.chat("b").status_code == 200
    write(service, models_config(a=folder / "a", c=write_fake_model(folder / "c", Load())))
    said = reload(service)
    assert "new: c\n" in said and "removed, each ends when it has finished: b\n" in said
    assert service.chat("c").status_code == 200
    assert service.chat("b").status_code == 404
    wait_until(lambda: service.worker("b") is None, "b is still there")
    assert reload(service) == "the models are as they were; all other settings count from now on\n"


def test_a_reload_cuts_nothing(service: Service, folder: Path) -> None:
    end = folder / "end"
    body = chat_body("b", "x", stream=True, fake={"until": str(end)})
    with service.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        write(service, models_config(a=folder / "a"))
        reload(service)
        assert service.worker("b")["state"] == "ready"  # type: ignore[index]
        end.touch()
        assert list(lines)[-2] == "data: [DONE]"
    wait_until(lambda: service.worker("b") is None, "b is still there")


def test_what_is_wrong_is_told_and_the_old_settings_go_on(service: Service, folder: Path) -> None:
    """15. The same message as at the start."""
    before = service.client.get("/api/config").json()
    path = service.home / "config.toml"
    write(service, "[memory]\nbudget = 'plenty'\n")
    done = service.cli("reload")
    assert done.returncode == 1
    assert done.stderr.startswith(f"mlx-supervisor: {path}:2: memory.budget must be a size such as")
    # Models that are pinned and can't be are found before anything is changed, too.
    write(service, "[memory]\nbudget = '1MiB'\n" + models_config(a=folder / "a") + "pin = true\n")
    done = service.cli("reload")
    assert done.returncode == 1
    assert f"{path}:5: the pinned models need" in done.stderr and "unpin one" in done.stderr
    assert service.client.get("/api/config").json() == before
    assert service.chat("b").status_code == 200


def test_settings_count_at_once_where_they_can(service: Service, folder: Path) -> None:
    assert service.chat("a").status_code == 200
    assert service.chat("b").status_code == 200
    models = models_config(a=folder / "a", b=folder / "b")
    config = f'[server]\nallowed_hosts = ["mac.local"]\n[memory]\nbudget = "70MiB"\n{models}pin = true\n'
    write(service, config.replace("pin = true", "context = 128"))
    said = reload(service)
    # A smaller budget: idle ones leave, the least recently used first. Fake workers hold 50 MB each.
    wait_until(lambda: service.worker("a") is None, "a is still there")
    assert "changed, partly from the next load on (unload to have it now): b\n" in said
    assert service.client.get("/v1", headers={"host": "mac.local"}).status_code == 200
    assert service.engine()["memory"]["budget_bytes"] == 70 * 2**20
    write(service, "[server]\nport = 9\n" + models)
    assert "changed, but it counts from the next start on: server.port\n" not in reload(service), (
        "the flag counts more than the file"
    )
    write(service, "[log]\nkeep = 2\n" + models)
    assert "changed, but it counts from the next start on: log\n" in reload(service)


def test_what_does_not_go_together_is_told_and_all_else_counts(service: Service, folder: Path) -> None:
    """It was to be found in `list` alone, and a model without room at the start never came."""
    write(
        service,
        "[server]\nfallback_model = 'nobody'\n[memory]\nbudget = '1MiB'\n[catalog]\nfolders = ['/nowhere']\n"
        + models_config(a=folder / "a", gone=folder / "gone")
        + f"[models.b]\nsource = '{folder / 'b'}'\npreload = true\n",
    )
    said = reload(service)
    assert "new: gone\n" in said
    for sentence in (
        "catalog.folders: there is no folder /nowhere",
        "server.fallback_model: there is no model 'nobody', so that names which nobody knows are refused",
        "gone can't be loaded: its folder does not exist",
        "memory.budget is 1.0 MiB, too little to load: a ",
    ):
        assert sentence in said
    assert service.worker("b") is None
    write(service, models_config(a=folder / "a") + f"[models.b]\nsource = '{folder / 'b'}'\npreload = true\n")
    assert reload(service) == "removed, each ends when it has finished: gone\n"
    wait_until(lambda: (service.worker("b") or {}).get("state") == "ready", "b is not loaded")


def test_sighup_reloads(service: Service, folder: Path) -> None:
    write(service, models_config(a=folder / "a", c=write_fake_model(folder / "c", Load())))
    os.kill(service.pid, signal.SIGHUP)

    def models() -> list[str]:
        return [model["id"] for model in service.client.get("/v1/models").json()["data"]]

    wait_until(lambda: models() == ["a", "c"], "not reloaded")


def test_pins_that_cannot_be_are_refused_at_the_start(tmp_path: Path) -> None:
    config = "[memory]\nbudget = '1MiB'\n" + models_config(a=write_fake_model(tmp_path / "a"))
    service = Service(tmp_path / "home", fake=True, config=config + "pin = true\n")
    with pytest.raises(AssertionError, match="exited 1"), service:
        pass
    assert "config.toml:5: the pinned models need" in service.output()


def test_a_budget_that_a_model_does_not_fit_is_told_at_the_start(tmp_path: Path) -> None:
    config = "[memory]\nbudget = '1MiB'\n" + models_config(a=write_fake_model(tmp_path / "a"))
    with Service(tmp_path / "home", fake=True, config=config, arguments=("--no-spare",)) as service:
        response = service.chat("a")
        assert response.status_code == 507
        assert response.json()["error"]["code"] == "does_not_fit"
        log = service.home / "logs" / "supervisor.log"
        # The event comes after the sentence.
        wait_until(lambda: "warning model.too_large model=a" in log.read_text(), "not told")
        assert "memory.budget is 1.0 MiB, too little to load: a " in service.output()


def test_a_model_that_has_failed_is_gone_when_it_is_removed(service: Service, folder: Path) -> None:
    """It was shown as failed until the supervisor ended."""
    broken = Load(fail=FailureKind.MISSING)
    write(service, models_config(a=folder / "a", d=write_fake_model(folder / "d", broken)))
    reload(service)
    assert service.chat("d").status_code == 502
    worker = service.worker("d")
    assert worker is not None and worker["state"] == "failed"
    write(service, models_config(a=folder / "a"))
    assert "removed, each ends when it has finished: d\n" in reload(service)
    assert service.worker("d") is None

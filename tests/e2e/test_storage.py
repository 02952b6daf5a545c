"""`info`, `rm` and `gc` as a person types them, with a running supervisor and without one."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import nursery
from tests.fixtures.harness import Service, wait_until
from tests.fixtures.models import write_fake_model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache with `org/cached`, and what a download left that broke off long ago."""
    cache = tmp_path_factory.mktemp("cache")
    repository = cache / "models--org--cached"
    write_fake_model(repository / "snapshots" / ("c" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c" * 40)
    (repository / "blobs").mkdir()
    partial = repository / "blobs" / "abc.incomplete"
    partial.write_bytes(bytes(4096))
    old_s = time.time() - 9 * 86_400
    os.utime(partial, (old_s, old_s))
    return cache


@pytest.fixture(scope="module")
def service(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("storage")
    home = base / "home"
    home.mkdir(mode=0o700)
    for name in ("one", "two", "org/three"):
        write_fake_model(home / "models" / name)
    (home / "models").chmod(0o700)
    mine = write_fake_model(base / "mine")
    config = (
        f'[models.mine]\nsource = "{mine}"\n[models."org/cached"]\npin = true\naliases = ["c", "any*"]\n'
        '[server]\nfallback_model = "one"\n'
    )
    with Service(home, fake=True, config=config, environ={"HF_HUB_CACHE": str(cache)}) as service:
        yield service


def said(ran: subprocess.CompletedProcess[str]) -> str:
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    return ran.stdout


def refused(ran: subprocess.CompletedProcess[str]) -> str:
    assert (ran.returncode, ran.stdout) == (1, ""), ran
    assert ran.stderr.startswith("mlx-supervisor: ") and ran.stderr.count("\n") == 1
    return ran.stderr


def test_info(service: Service) -> None:
    said(service.cli("load", "two"))
    lines = dict(line.split(":", 1) for line in said(service.cli("info", "two")).splitlines())
    assert lines["state"].strip() == "ready"
    assert lines["on disk"].endswith(str(service.home / "models" / "two"))
    worker = service.worker("two")
    assert worker is not None and f"pid {worker['pid']}" in lines["process"]
    cached = json.loads(said(service.cli("info", "c", "--json")))
    assert (cached["id"], cached["disk"]["repo"], cached["pin"]) == ("org/cached", "org/cached", True)
    assert "org/cached, commit cccccccccccc" in said(service.cli("info", "org/cached"))
    assert "requests for it are answered by 'one'" in refused(service.cli("info", "tow"))


def test_rm_removes_what_is_ours_and_nothing_that_is_used(service: Service) -> None:
    said(service.cli("load", "two"))
    assert "'two' is loaded (ready, pid" in refused(service.cli("rm", "two"))
    assert "in a folder of your own" in refused(service.cli("rm", "mine"))
    # What only answers for a name is not meant by it.
    for name in ("tow", "anything"):
        assert "There is no model of this name; requests for it are answered by" in refused(
            service.cli("rm", name)
        )
    told = said(service.cli("rm", "org/three", "--dry-run"))
    assert told.startswith("org/three would be removed: ")
    assert (service.home / "models" / "org" / "three").exists()
    assert said(service.cli("rm", "org/three")) == told.replace("would be removed", "removed")
    assert not (service.home / "models" / "org").exists()
    assert "org/three" not in said(service.cli("list"))
    said(service.cli("unload", "two"))
    said(service.cli("rm", "two"))
    assert sorted(path.name for path in (service.home / "models").iterdir()) == ["one"]


def test_gc_frees_what_broke_off(service: Service, cache: Path) -> None:
    told = said(service.cli("gc", "--dry-run"))
    assert "unfinished download  org/cached" in told
    assert told.splitlines()[-1] == "would free 4 KiB"
    assert service.client.get("/api/garbage").json()["freed_bytes"] == 4096
    assert said(service.cli("gc")).splitlines()[-1] == "freed 4 KiB"
    assert said(service.cli("gc")) == "there is nothing to clean up\n"
    assert not list(cache.rglob("*.incomplete"))
    assert service.chat("c").status_code == 200


def test_without_a_supervisor(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    write_fake_model(home / "models" / "one")
    (home / "models").chmod(0o700)
    (home / "models" / ".importing-x-999999999").mkdir()

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"HF_HUB_CACHE": str(tmp_path / "cache")}
        return nursery.run("supervisor", *arguments, "--home", str(home), env=environ)

    assert "did you mean one" in refused(cli("rm", "on")).lower()
    assert json.loads(said(cli("rm", "one", "--dry-run", "--json")))["dry_run"] is True
    assert said(cli("rm", "one")).startswith("one removed: ")
    assert said(cli("gc")).splitlines()[-1] == "freed 0 B"
    assert list((home / "models").iterdir()) == []


def test_what_is_removed_is_kept_ready_no_more(tmp_path: Path) -> None:
    """A spare has the files open of the model that had to make room: the disk would keep its bytes."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("a", "b", "c"):
        write_fake_model(home / "models" / name)
    (home / "models").chmod(0o700)
    with Service(home, fake=True, config='[defaults]\nexclusive = true\nhold = "0s"\n') as service:
        for name in ("a", "b"):
            service.chat(name).raise_for_status()
        wait_until(lambda: service.engine()["spare"] is not None, "no spare")
        said(service.cli("rm", "a"))
        service.chat("c").raise_for_status()
        log = (home / "logs" / "worker-c.log").read_text()
    previews = [line.rpartition(" ")[2] for line in log.splitlines() if "preview of" in line]
    assert previews[-2:] == ["None", str(home / "models" / "c")]

"""`pull` as a person types it: with a running supervisor and without one, from a hub on loopback."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.catalog.catalog import Catalog
from supervisor.home import Home
from supervisor.settings import Settings
from tests.fixtures import nursery
from tests.fixtures.harness import Service, wait_until
from tests.fixtures.hub import GOOD_TOKEN, FakeHub, Gate, Repo, model_files
from tests.fixtures.models import write_fake_model

Json = dict[str, Any]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def service(shared_hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("pull")
    config = '[models."org/model"]\naliases = ["m"]\n'
    environ = shared_hub.environ(str(base / "cache"))
    with Service(
        base / "home", fake=True, config=config, environ=environ, arguments=("--no-spare",)
    ) as service:
        yield service


@pytest.fixture
def hub(shared_hub: FakeHub) -> FakeHub:
    shared_hub.repos = {
        "org/model": Repo(model_files() | {"fake.json": b"{}"}),
        "org/other": Repo(model_files(seed=2)),
        "org/gated": Repo(model_files(seed=3), access="gated"),
    }
    shared_hub.gates.clear()
    shared_hub.seen.clear()
    return shared_hub


_STARTED: list[nursery.Program] = []


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    for process in _STARTED:
        process.kill()
        process.communicate()
    _STARTED.clear()


def pulling(home: Path, hub: FakeHub, cache: Path, *arguments: str, **environ: str) -> nursery.Program:
    process = nursery.launch(
        "supervisor",
        ["pull", *arguments, "--home", str(home)],
        env=os.environ | hub.environ(str(cache)) | environ,
        new_session=True,
    )
    _STARTED.append(process)
    return process


def ended(process: nursery.Program) -> tuple[int, str, str]:
    code, out, err = process.communicate(timeout=50)
    assert "Traceback" not in err, err
    return code, out, err


def refused(process: nursery.Program) -> str:
    code, out, err = ended(process)
    assert (code, out) == (1, ""), (out, err)
    assert err.startswith("mlx-supervisor: ") and err.count("\n") == 1
    return err


def test_a_model_is_pulled_and_can_be_asked_for(service: Service, hub: FakeHub, tmp_path: Path) -> None:
    assert service.chat("m").status_code in (404, 502)
    code, out, err = ended(pulling(service.home, hub, tmp_path, "org/model"))
    assert (code, err) == (0, "")
    assert out.splitlines() == ["org/model: 6 files, 293 KiB", "org/model is whole: 293 KiB downloaded"]
    assert service.chat("m").status_code == 200
    shown = service.client.get("/downloads").json()["downloads"]
    assert [(item["repo"], item["state"]) for item in shown] == [("org/model", "done")]
    log = (service.home / "logs" / "supervisor.log").read_text()
    for kind in ("started", "planned", "finished"):
        assert f"download.{kind} repo=org/model" in log
    # It is there, so once more is quick and says so.
    code, out, _ = ended(pulling(service.home, hub, tmp_path, "org/model"))
    assert out.splitlines()[-1] == "org/model is whole: nothing was missing"
    code, out, _ = ended(pulling(service.home, hub, tmp_path, "org/model", "--json"))
    last = [json.loads(line) for line in out.splitlines()][-1]
    assert (code, last["state"], last["fetched_bytes"]) == (0, "done", 0)
    assert last == service.client.get("/api/downloads/org/model").json()


def test_a_second_pull_joins_and_leaves_without_ending_it(
    service: Service, hub: FakeHub, tmp_path: Path
) -> None:
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    first = pulling(service.home, hub, tmp_path, "org/other")
    assert gate.reached.wait(50)
    second = pulling(service.home, hub, tmp_path, "org/other")
    third = pulling(service.home, hub, tmp_path, "org/other")
    assert third.stdout is not None
    assert third.stdout.readline() == "org/other is being downloaded already; this is how far it is\n"
    os.killpg(third.pid, signal.SIGINT)
    code, _, err = ended(third)
    assert code == 130
    assert "the download goes on; end it with: mlx-supervisor pull --cancel org/other" in err
    gate.opened.set()
    for process in (first, second):
        code, out, _ = ended(process)
        assert code == 0
        assert out.splitlines()[-1] == "org/other is whole: 293 KiB downloaded"
    assert len(hub.fetched(WEIGHTS)) == 1


def arrived(service: Service, repo: str) -> bool:
    """Whether more of it is here than when its download began."""
    download = service.client.get(f"/api/downloads/{repo}").json()
    return bool(download["done_bytes"] > download["there_bytes"] + 50_000)


def test_ctrl_c_and_cancel_end_it_and_the_next_one_goes_on(
    service: Service, hub: FakeHub, tmp_path: Path
) -> None:
    hub.repos["org/third"] = Repo(model_files(seed=4))
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    for end in ("ctrl-c", "cancel"):
        gate.reached.clear()
        process = pulling(service.home, hub, tmp_path, "org/third")
        assert gate.reached.wait(50)
        # Sent is not received yet.
        wait_until(lambda: arrived(service, "org/third"), "some of it is here")
        if end == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)
            code, _, err = ended(process)
            assert code == 130
            assert "what it brought is kept" in err
        else:
            assert service.cli("pull", "--cancel", "org/third").stdout.startswith("org/third: cancelled")
            code, _, err = ended(process)
            assert (code, err.count("was cancelled")) == (1, 1)
        gate.opened.set()
        assert not [process for process in service.workers() if "supervisor.pulling" in process.cmdline()]
        gate = hub.gates[WEIGHTS] = Gate(100_000)
    hub.gates.clear()
    code, out, _ = ended(pulling(service.home, hub, tmp_path, "org/third"))
    assert code == 0
    assert "of it are there" in out
    # How much of it had come when it ended is a matter of the machine.
    first, *later = [seen.range for seen in hub.fetched(WEIGHTS)]
    assert first is None
    assert later and all(asked is not None and not asked.startswith("bytes=0-") for asked in later)
    assert service.client.get("/api/downloads/org/third").json()["state"] == "done"


def test_the_login_of_who_types_it_is_used_and_stays_secret(
    service: Service, hub: FakeHub, tmp_path: Path
) -> None:
    code, _, sentence = ended(pulling(service.home, hub, tmp_path, "org/gated"))
    assert code == 1
    assert f"org/gated is gated: accept its conditions at {hub.url}/org/gated" in sentence
    code, _, _ = ended(pulling(service.home, hub, tmp_path, "org/gated", HF_TOKEN=GOOD_TOKEN))
    assert code == 0
    for log in (service.home / "logs").iterdir():
        assert GOOD_TOKEN not in log.read_text()


def test_without_a_supervisor(hub: FakeHub, tmp_path: Path) -> None:
    """Refusals of one sentence, a download that is broken off, and one that ends well."""
    home, cache = tmp_path / "home", tmp_path / "cache"
    assert "names no repository of the hub" in refused(pulling(home, hub, cache, "nonsense"))
    assert "does not exist" in refused(pulling(home, hub, cache, "org/none"))
    unreachable = pulling(home, hub, cache, "org/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert "can't be reached" in refused(unreachable)
    assert "start it with" in refused(pulling(home, hub, cache, "--cancel", "org/model"))
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    process = pulling(home, hub, cache, "org/model", "--json")
    assert gate.reached.wait(50)
    assert process.stdout is not None
    lines: list[Json] = []
    while not lines or not lines[-1]["total_bytes"]:
        lines.append(json.loads(process.stdout.readline()))
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    lines += map(json.loads, out.splitlines())
    assert (code, err.count("stopped; what it brought is kept")) == (130, 1)
    assert lines[-1]["state"] == "cancelled" and len({line["total_bytes"] for line in lines}) == 2
    code, out, err = ended(pulling(home, hub, cache, "org/none", "--json"))
    last = json.loads(out.splitlines()[-1])
    assert (code, last["state"], last["code"]) == (1, "failed", "not_found") and last["problem"] in err
    hub.gates.clear()
    code, out, err = ended(pulling(home, hub, cache, "org/model"))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("org/model is whole: ")
    assert not home.exists()


def test_a_supervisor_that_stops_ends_its_downloads(hub: FakeHub, tmp_path: Path) -> None:
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    environ = hub.environ(str(tmp_path / "cache"))
    write_fake_model(Home.open(tmp_path / "home").models / "one")
    with Service(tmp_path / "home", fake=True, environ=environ) as service:
        service.client.post("/api/downloads", json={"repo": "org/other"}).raise_for_status()
        assert gate.reached.wait(50)
        assert service.stop() == 0
        log = (tmp_path / "home" / "logs" / "supervisor.log").read_text()
        assert "download.cancelled repo=org/other" in log
    record = next((tmp_path / "cache").rglob(".mlx-supervisor.json"))
    assert json.loads(record.read_bytes())["repo"] == "org/other"
    catalog = Catalog(Home.find(tmp_path / "home"), Settings(), environ)
    assert {entry.id: entry.problem for entry in catalog.entries()}["org/other"] == (
        "its download has not finished; go on with: mlx-supervisor pull org/other"
    )

"""`hosts` in a model's settings, and the files that mlx.distributed_config writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.launch import Host
from supervisor.catalog.catalog import Catalog
from supervisor.catalog.costs import Costs
from supervisor.catalog.hosts import HostsError, read_hosts
from supervisor.catalog.machine import Machine
from supervisor.home import Home
from supervisor.settings import MemorySettings, ModelSettings, Settings
from supervisor.settings.checks import check
from supervisor.workers.options import options_of
from tests.fixtures.models import write_fake_model
from tests.fixtures.tiny import Tiny, write_tiny


def written(tmp_path: Path, value: object) -> str:
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps(value))
    return str(path)


def host(name: str, *ips: str, rdma: list[str | None] | None = None) -> dict[str, Any]:
    return {"ssh": name, "ips": list(ips), "rdma": rdma or []}


def test_names_with_addresses_make_a_ring() -> None:
    shards = read_hosts(["127.0.0.1", "studio.local=10.0.1.2", "me@mini=fe80::2"])
    assert shards.backend == "ring"
    assert shards.hosts == (
        Host("127.0.0.1", ("127.0.0.1",)),
        Host("studio.local", ("10.0.1.2",)),
        Host("me@mini", ("fe80::2",)),
    )
    assert [one.local for one in shards.hosts] == [True, False, False]
    assert shards.here == pytest.approx(1 / 3)
    assert read_hosts(["127.0.0.1", "127.0.0.1"]).here == 1


def test_a_file_of_mlx_says_more(tmp_path: Path) -> None:
    file = {
        "backend": "jaccl",
        "envs": ["MLX_METAL_FAST_SYNCH=1"],
        "hosts": [host("a", "10.0.0.1", rdma=[None, "rdma_en2"]), host("b", rdma=["rdma_en3", None])],
    }
    shards = read_hosts([written(tmp_path, file)])
    assert shards.backend == "jaccl"
    assert shards.environment == {"MLX_METAL_FAST_SYNCH": "1"}
    assert shards.hosts[1] == Host("b", (), ("rdma_en3", None))
    plain = read_hosts([written(tmp_path, [host("a", "10.0.0.1"), host("b", "10.0.0.2", "10.0.1.2")])])
    assert plain.backend == "ring"
    assert plain.hosts[1].ips == ("10.0.0.2", "10.0.1.2")


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (["127.0.0.1"], "its `hosts` name 1 machines"),
        (["127.0.0.1", "studio"], "'studio' in its `hosts` needs an address: \"studio=10.0.0.2\""),
        (["127.0.0.1", "-oProxyCommand=10.0.0.2"], "is no name of a machine"),
        (["127.0.0.1", "a b=10.0.0.2"], "is no name of a machine"),
        (["127.0.0.1", "=10.0.0.2"], "is no name of a machine"),
        (["/nowhere/hosts.json"], "its file of hosts can't be read: No such file"),
    ],
)
def test_what_can_not_be_used_is_told(hosts: list[str], reason: str) -> None:
    with pytest.raises(HostsError) as caught:
        read_hosts(hosts)
    assert reason in str(caught.value)
    assert "/nowhere" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ({"hosts": 3}, "none that mlx.distributed_config writes"),
        ({"backend": "mpi", "hosts": [host("a", "10.0.0.1")] * 2}, "wants the backend 'mpi'; ring and jaccl"),
        ({"envs": ["LD_PRELOAD=x"], "hosts": [host("a", "10.0.0.1")] * 2}, "none of mlx's"),
        ({"backend": "jaccl", "hosts": [host("a", "10.0.0.1")] * 2}, "no RDMA devices for 2 machines"),
        ([host("a", "10.0.0.1"), host("b")], "'b' in its `hosts` needs an address"),
    ],
)
def test_a_file_that_can_not_be_used_is_told(tmp_path: Path, file: object, reason: str) -> None:
    with pytest.raises(HostsError) as caught:
        read_hosts([written(tmp_path, file)])
    assert reason in str(caught.value)


def test_the_catalog_and_the_launch_record_have_them(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    write_fake_model(home.models / "large")
    models = {
        "spread": ModelSettings(source="large", hosts=("127.0.0.1", "b=10.0.0.2")),
        "wrong": ModelSettings(source="large", hosts=("127.0.0.1", "b")),
    }
    catalog = Catalog(home, Settings(models=models))
    spread = catalog.resolve("spread")
    assert spread.problem is None and spread.shards is not None
    options = options_of(spread.settings, MemorySettings(), tmp_path, spread.draft, spread.shards)
    assert options.shards == spread.shards
    assert "needs an address" in str(catalog.resolve("wrong").problem)


def test_each_machine_counts_for_its_share(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    write_tiny(home.models / "large", Tiny())
    machine = Machine("test GPU", "metal", 2**36, 2**35)

    def estimated(*hosts: str) -> int:
        catalog = Catalog(home, Settings(models={"large": ModelSettings(hosts=hosts)}))
        return Costs(machine).cost(catalog.resolve("large")).estimate_bytes

    assert estimated("127.0.0.1", "b=10.0.0.2") == pytest.approx(estimated() / 2, rel=0.01)
    assert estimated("127.0.0.1", "127.0.0.1") == estimated()


def test_contradictions_are_told_at_the_start() -> None:
    two = ("127.0.0.1", "b=10.0.0.2")
    models = {
        "alone": ModelSettings(hosts=("127.0.0.1",)),
        "drafted": ModelSettings(hosts=two, draft="small"),
        "adapted": ModelSettings(hosts=two, adapters={"sql": "~/sql"}),
        "fine": ModelSettings(hosts=two),
        "file": ModelSettings(hosts=("~/hosts.json",)),
    }
    problems = {key[1]: sentence for key, sentence in check(Settings(models=models))}
    assert problems.keys() == {"alone", "drafted", "adapted"}
    assert "name two or more" in problems["alone"]
    assert "can't have a draft" in problems["drafted"]
    assert "can't have adapters" in problems["adapted"]

"""The list of processes that a killed supervisor leaves to the next one."""

import json
import os
from pathlib import Path

import psutil
import pytest

from supervisor.workers.ledger import Entry, Ledger, sweep


def test_the_file_follows_the_processes(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    ledger = Ledger(path)
    ledger.add(Entry(1, 10.0, ("a",)))
    ledger.add(Entry(2, 20.0, ("b",)))
    ledger.remove(1)
    assert json.loads(path.read_bytes()) == [{"pid": 2, "created_s": 20.0, "command": ["b"]}]
    ledger.remove(2)
    ledger.remove(2)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'[{"pid": "x"}]', b"\xff\xfe"])
def test_a_damaged_file_ends_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "workers.json"
    path.write_bytes(content)
    assert sweep(path) == 0
    assert not path.exists()


def test_no_file_is_nothing_to_do(tmp_path: Path) -> None:
    assert sweep(tmp_path / "workers.json") == 0


def test_a_process_that_only_shares_the_pid_is_left_alone(tmp_path: Path) -> None:
    """This very process would end otherwise."""
    me = psutil.Process()
    command = tuple(me.cmdline())
    path = tmp_path / "workers.json"
    ledger = Ledger(path)
    ledger.add(Entry(me.pid, me.create_time() - 60.0, command))
    assert sweep(path) == 0
    ledger.add(Entry(me.pid, me.create_time(), ("python", "-m", "worker", "--status-fd", "5")))
    assert sweep(path) == 0


def test_a_folder_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "missing" / "workers.json")
    ledger.add(Entry(os.getpid(), 0.0, ()))
    ledger.remove(os.getpid())

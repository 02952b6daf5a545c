"""A model on two ranks behind the whole program: killed by halves it comes back whole."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.fixtures.harness import Service, wait_until
from tests.fixtures.tiny import tiny_model

pytestmark = pytest.mark.slow


def text(service: Service, model: str) -> str:
    answer = service.chat(model, max_tokens=30, temperature=0)
    assert answer.status_code == 200, answer.text
    said: str = answer.json()["choices"][0]["message"]["content"]
    return said


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_of_either_rank_starts_both_anew(tmp_path: Path, rank: int) -> None:
    folder = json.dumps(str(tiny_model()))
    config = (
        f"[memory]\nspare = false\n[models.one]\nsource = {folder}\n"
        f'[models.two]\nsource = {folder}\nhosts = ["127.0.0.1", "127.0.0.1"]\n'
    )
    with Service(tmp_path / "home", config=config) as service:
        expected = text(service, "one")
        assert text(service, "two") == expected
        worker = service.worker("two")
        assert worker is not None
        leader = psutil.Process(worker["pid"])
        (other,) = leader.children()
        os.kill([leader, other][rank].pid, signal.SIGKILL)
        wait_until(lambda: not leader.is_running() and not other.is_running(), "a rank is left")
        assert text(service, "two") == expected
        again = service.worker("two")
        assert again is not None and again["generation"] == worker["generation"] + 1
        assert len(psutil.Process(again["pid"]).children()) == 1

"""GET /fit: what it answers, and what it refuses."""

import json
from pathlib import Path

import pytest

from tests.fixtures.tiny import Tiny, write_tiny
from tests.fixtures.wire import connected
from tests.unit.front.doubles import says_ok, supervised


async def test_fit_tells_parts_context_and_machines(tmp_path: Path) -> None:
    write_tiny(tmp_path / "home" / "models" / "tiny", Tiny(context=2048))
    (tmp_path / "home").chmod(0o700)
    (tmp_path / "home" / "models").chmod(0o700)
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask("/fit?model=tiny&ctx=1000&rows=2&machines=true")
        assert answer.status == 200
        found = json.loads(answer.body)
        fit = found["here"]
        assert (fit["context"], fit["rows"], fit["largest_context"]) == (1000, 2, 2048)
        assert fit["fits"] and fit["budget_bytes"] == 40 * 2**30
        assert fit["total_bytes"] == sum(fit["parts"].values())
        assert found["estimate_bytes"] <= found["cost_bytes"]
        assert found["measured_bytes"] is None
        assert len(found["machines"]) > 50
        assert {machine["machine"] for machine in found["machines"]} >= {"Apple M1", "Apple M5 Max"}
        whole = json.loads((await wire.ask("/fit?model=tiny")).body)
        assert whole["here"]["context"] == 2048
        assert whole["machines"] == []
        # More than the model has was silently answered for what it has.
        beyond = await wire.ask("/fit?model=tiny&ctx=2049")
        assert (beyond.status, json.loads(beyond.body)["error"]["param"]) == (400, "ctx")
        said = json.loads(beyond.body)["error"]["message"]
        assert said.startswith("tiny takes at most 2048 tokens, prompt and answer together; ")


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("", 400, "model"),
        ("?model=", 400, "model"),
        ("?model=nobody", 404, "model"),
        ("?model=fake&ctx=0", 400, "ctx"),
        ("?model=fake&ctx=-5", 400, "ctx"),
        ("?model=fake&ctx=many", 400, "ctx"),
        ("?model=fake&ctx=%C2%B2", 400, "ctx"),
        ("?model=fake&ctx=99999999999999999999999", 400, "ctx"),
        ("?model=fake&rows=5000", 400, "rows"),
        ("?model=fake&machines=maybe", 400, "machines"),
    ],
)
async def test_what_is_asked_wrongly_is_named(tmp_path: Path, query: str, status: int, param: str) -> None:
    async with supervised(tmp_path, says_ok) as here, connected(here.address) as wire:
        answer = await wire.ask(f"/fit{query}")
        assert answer.status == status
        assert json.loads(answer.body)["error"]["param"] == param

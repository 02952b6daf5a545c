"""Adapters on a real, tiny network: in and out again, against mlx-lm's own way to load them."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

from tests.fixtures.adapters import write_adapter
from tests.fixtures.tiny import Tiny, tiny_model
from worker.engine.admission import Admission
from worker.engine.turns import Turn
from worker.model.adapters import AdapterError, Adapters

TOKENS = mx.array([[72, 101, 108, 108, 111]])


def network() -> Any:
    return load_model(tiny_model())[0]


def said(model: Any) -> list[float]:
    logits: list[float] = model(TOKENS)[0, -1].tolist()
    return logits


def theirs(folder: Path) -> list[float]:
    model: Any = network()
    load_adapters(model, str(folder))
    model.eval()
    return said(model)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_is_put_in_and_taken_out(tmp_path: Path, kind: str) -> None:
    model = network()
    plain = said(model)
    adapters = Adapters(model)
    one = write_adapter(tmp_path / "one", seed=1, kind=kind)
    two = write_adapter(tmp_path / "two", seed=2, kind=kind)
    assert adapters.add("one", one) > 0
    assert said(model) == plain
    adapters.add("two", two)
    adapters.select("one")
    assert said(model) == pytest.approx(theirs(one), abs=1e-4)
    assert said(model) != pytest.approx(plain, abs=0.1)
    adapters.select("two")
    assert said(model) == pytest.approx(theirs(two), abs=1e-4)
    adapters.select("")
    assert said(model) == plain


def test_base_weights_are_never_replaced(tmp_path: Path) -> None:
    model = network()
    before = {name: id(array) for name, array in tree_flatten(model.parameters())}
    adapters = Adapters(model)
    adapters.add("one", write_adapter(tmp_path / "one"))
    adapters.select("one")
    adapters.remove("one")
    assert {name: id(array) for name, array in tree_flatten(model.parameters())} == before
    with pytest.raises(KeyError):
        adapters.select("one")


def test_loading_another_leaves_the_one_in_place(tmp_path: Path) -> None:
    model = network()
    adapters = Adapters(model)
    adapters.add("one", write_adapter(tmp_path / "one", seed=1))
    adapters.select("one")
    with_one = said(model)
    adapters.add("two", write_adapter(tmp_path / "two", seed=2))
    assert said(model) == with_one


@pytest.mark.parametrize("harm", ["empty", "foreign", "peft", "full", "nonsense", "half", "no scale"])
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path, harm: str) -> None:
    model = network()
    plain = said(model)
    folder = tmp_path / "adapter"
    if harm == "foreign":
        write_adapter(folder, tiny=Tiny(hidden=128))
    else:
        write_adapter(folder)
    configuration = json.loads((folder / "adapter_config.json").read_text())
    weights = folder / "adapters.safetensors"
    match harm:
        case "empty":
            weights.unlink()
        case "peft":
            weights.rename(folder / "adapter_model.safetensors")
        case "full":
            configuration["fine_tune_type"] = "full"
        case "nonsense":
            configuration = {"a": 1}
        case "no scale":
            del configuration["lora_parameters"]["scale"]
        case "half":
            found: Any = mx.load(str(weights))
            first = next(name for name in found if name.endswith("lora_a"))
            half = {name: array for name, array in found.items() if name != first}
            mx.save_safetensors(str(weights), half)
    (folder / "adapter_config.json").write_text(json.dumps(configuration))
    adapters = Adapters(model)
    with pytest.raises(AdapterError) as caught:
        adapters.add("x", folder)
    assert str(tmp_path) not in str(caught.value)
    assert said(model) == plain
    with pytest.raises(KeyError):
        adapters.select("x")


def test_rows_of_different_adapters_never_run_together_and_all_get_their_turn() -> None:
    admission = Admission(rows=4, queue=200)
    running: list[Turn] = []

    def line_up(adapter: str) -> Turn:
        turn = Turn(lambda: running.append(turn), adapter=adapter)
        admission.admit(turn)
        admission.ready(turn)
        return turn

    line_up("a")
    other = line_up("b")
    passed = 0
    # Later ones with the adapter in place may pass, but not for ever.
    while other not in running:
        line_up("a")
        assert len({turn.adapter for turn in running}) == 1
        admission.leave(running.pop(0))
        passed += 1
        assert passed < 100
    assert len({turn.adapter for turn in running}) == 1
    assert admission.using("b") == 1

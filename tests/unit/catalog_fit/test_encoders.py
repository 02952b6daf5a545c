"""Encoders in the catalog: what a text of theirs may have, and what a worker with one comes to."""

import json
from pathlib import Path

from supervisor.catalog.architectures import layout_of
from supervisor.catalog.footprint import Demand, estimate, read_size
from supervisor.catalog.machine import Machine
from supervisor.catalog.scan import Scanner
from tests.fixtures.minilm import minilm_model

MAC = Machine("a Mac", backend="metal", memory_bytes=2**34, gpu_bytes=2**33)


def test_a_real_one_is_known(tmp_path: Path) -> None:
    found = Scanner().scan(minilm_model())
    assert (found.architecture, found.context, found.problem) == ("bert", 512, None)
    size = read_size(minilm_model())
    assert size.layout.known and size.context == 512
    assert size.weights.packed_bytes == found.weights_bytes
    parts = estimate(size, MAC, Demand(context=512, rows=8))
    assert parts.kv_bytes == parts.state_bytes == 0
    # 90 MB of weights, one text of 512 tokens, and what every worker needs.
    assert found.weights_bytes < parts.total_bytes < found.weights_bytes + 512 * 2**20


def test_longer_texts_take_more(tmp_path: Path) -> None:
    size = read_size(minilm_model())
    short, long = (estimate(size, MAC, Demand(context=tokens)).working_bytes for tokens in (128, 8192))
    assert long > 4 * short


def test_positions_before_the_text_are_no_room_for_it(tmp_path: Path) -> None:
    config = {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Scanner().scan(tmp_path).context == 512
    assert layout_of({**config, "num_hidden_layers": 12}).keys_bytes(512) == 0

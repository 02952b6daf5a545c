"""What a scan tells about a folder, whole or broken."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.launch import Sampling
from supervisor.catalog.scan import Scanner
from tests.fixtures.models import write_fake_model
from tests.fixtures.tiny import Tiny, write_tiny
from worker.model.description import sampling_defaults


def test_a_whole_model(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", Tiny("qwen3", context=777))
    found = Scanner().scan(folder)
    assert (found.architecture, found.context, found.problem) == ("qwen3", 777, None)
    file_bytes = (folder / "model.safetensors").stat().st_size
    assert 0.97 * file_bytes < found.weights_bytes < file_bytes


def config(**fields: object) -> Callable[[Path], None]:
    return lambda folder: _write(folder / "config.json", fields)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def only_gguf(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "Tiny-Q8_0.gguf").write_bytes(b"GGUF")


def sharded(folder: Path) -> None:
    """Two of three shards are there; the third is a link into a cache that lost it."""
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names[:2]:
        (folder / name).write_bytes(content)
    (folder / names[2]).symlink_to(folder / "blobs" / "gone")
    _write(folder / "model.safetensors.index.json", {"weight_map": dict(zip("abc", names, strict=True))})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (only_gguf, "it holds a GGUF file, which must be imported: mlx-supervisor import Tiny-Q8_0.gguf"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not a valid JSON object"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json is not a valid"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is not a valid JSON object"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff"), "config.json is not a valid JSON"),
        (config(hidden_size=1), "does not name an architecture"),
        (config(model_type=7), "does not name an architecture"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors is damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64), "is damaged or incomplete"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]"), "is damaged"),
        (truncated, "model.safetensors is incomplete"),
        (sharded, "1 of its 3 weight files are missing, such as model-00003-of-00003.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer files"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    folder = write_tiny(tmp_path / "tiny", Tiny())
    damage(folder)
    found = Scanner().scan(folder)
    assert found.problem is not None and problem in found.problem
    assert str(tmp_path) not in found.problem


def test_shards_are_added_up(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", Tiny())
    alone = Scanner().scan(folder).weights_bytes
    sharded(folder)
    (folder / "model-00003-of-00003.safetensors").unlink()
    (folder / "model-00003-of-00003.safetensors").write_bytes(
        (folder / "model-00001-of-00003.safetensors").read_bytes()
    )
    found = Scanner().scan(folder)
    assert found.problem is None
    assert found.weights_bytes == 3 * alone


def test_no_folder_and_no_permission(tmp_path: Path) -> None:
    assert Scanner().scan(tmp_path / "none").problem == "its folder does not exist"
    (tmp_path / "file").write_text("")
    assert Scanner().scan(tmp_path / "file").problem == "its source is a file, not a model folder"


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 512}, "max_position_embeddings": 9}, 512),
        ({"max_position_embeddings": None, "seq_length": 99}, 99),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": "long"}, None),
        ({}, None),
    ],
)
def test_the_context_is_found_where_the_architecture_has_it(
    tmp_path: Path, fields: dict[str, object], context: int | None
) -> None:
    folder = write_fake_model(tmp_path / "fake")
    config(model_type="llama", **fields)(folder)
    assert Scanner().scan(folder).context == context


def test_a_folder_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "fake")
    scanner = Scanner()
    first = scanner.scan(folder)
    assert scanner.scan(folder) is first
    config(model_type="qwen3")(folder)
    assert scanner.scan(folder).architecture == "qwen3"
    scanner.forget_except(set())
    assert scanner.scan(folder).architecture == "qwen3"


def test_the_model_s_own_sampling_is_read_as_the_worker_reads_it(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", Tiny())
    scanner = Scanner()
    assert scanner.scan(folder).sampling == Sampling()
    own = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 7, "do_sample": True}
    _write(folder / "generation_config.json", own)
    assert scanner.scan(folder).sampling == Sampling(temperature=0.6, top_p=0.9, top_k=20)
    for broken in ("[", "[]", "\udcff"):
        (folder / "generation_config.json").write_text(broken, errors="surrogateescape")
        assert scanner.scan(folder).sampling == sampling_defaults(folder) == Sampling()

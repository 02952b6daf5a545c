"""Model folders: what they say, how they fail, how their weights are unpacked."""

import ctypes
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from shared.launch import Options, Sampling
from shared.limits import UNBOUNDED_CONTEXT
from shared.status import FailureKind, Progress
from tests.fixtures.tiny import Tiny, tiny_model
from worker.model.backend import preload_blas, prepare_backend
from worker.model.description import context_window, sampling_defaults
from worker.model.failures import LoadError, explain
from worker.model.loading import load
from worker.model.precision import widen
from worker.model.unpacking import can_unpack, unpacked


@pytest.mark.parametrize(
    ("config", "limit", "window"),
    [
        ({"max_position_embeddings": 4096}, None, 4096),
        ({"max_position_embeddings": 4096}, 1024, 1024),
        ({"max_position_embeddings": 4096}, 9999, 4096),
        ({"text_config": {"max_position_embeddings": 2048}}, None, 2048),
        ({"n_ctx": 512}, None, 512),
        ({}, None, UNBOUNDED_CONTEXT),
        ({"max_position_embeddings": None}, 100, 100),
    ],
)
def test_context_window(config: dict[str, Any], limit: int | None, window: int) -> None:
    assert context_window(config, limit) == window


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0}', Sampling(0.6, 0.95, 20, 0)),
        ('{"temperature": -1, "top_p": "x", "top_k": true}', Sampling()),
        ("[]", Sampling()),
        ("{", Sampling()),
        (None, Sampling()),
    ],
)
def test_sampling_defaults(tmp_path: Path, content: str | None, expected: Sampling) -> None:
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert sampling_defaults(tmp_path) == expected


def test_a_fast_blas_is_loaded_globally_and_only_on_linux() -> None:
    asked: list[tuple[str, int]] = []

    def missing_first(name: str, mode: int) -> object:
        asked.append((name, mode))
        if name == "first":
            raise OSError("no such library")
        return object()

    names = ("first", "second")
    assert preload_blas(platform="darwin", load=missing_first, names=names) is None
    assert not asked
    assert preload_blas(platform="linux", load=missing_first, names=names) == "second"
    assert asked == [("first", ctypes.RTLD_GLOBAL), ("second", ctypes.RTLD_GLOBAL)]
    assert preload_blas(platform="linux", load=missing_first, names=("first",)) is None


@pytest.mark.parametrize(("chosen", "counts"), [(None, "4"), ("26", "26")])
def test_blas_does_not_spin_unless_it_was_asked_to(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, counts: str
) -> None:
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", chosen)
    prepare_backend()
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == counts


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_unpacked_weights_are_what_mlx_unpacks(bits: int, group_size: int, dtype: Any) -> None:
    linear = nn.Linear(128, 48, bias=True)
    linear.set_dtype(dtype)
    packed = linear.to_quantized(group_size, bits)
    mx.eval(packed.parameters())
    assert can_unpack(packed)
    (layer,) = unpacked([packed])
    scales, biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    expected = mx.dequantize(packed.weight, scales, biases, group_size, bits)
    assert layer.weight.dtype == mx.float32
    assert mx.array_equal(layer.weight, expected)
    assert mx.array_equal(layer.bias, linear.bias)


def test_embeddings_are_unpacked_and_other_kinds_left_alone() -> None:
    embedding = nn.Embedding(32, 64).to_quantized(32, 4)
    (layer,) = unpacked([embedding])
    assert isinstance(layer, nn.Embedding)
    assert not can_unpack(nn.Linear(64, 64).to_quantized(32, 4, mode="mxfp4"))
    assert not can_unpack(nn.Linear(64, 64))


def _quantised(bits: int = 4) -> nn.Module:
    network = nn.Sequential(nn.Linear(64, 64, bias=False), nn.RMSNorm(64), nn.Linear(64, 32))
    network.set_dtype(mx.bfloat16)
    nn.quantize(network, 32, bits)
    return network


def test_weights_become_float32_when_they_fit() -> None:
    network, seen = _quantised(), list[tuple[int, int]]()
    before = network(mx.ones((1, 64)))
    assert widen(network, lambda done, total: seen.append((done, total)), available_bytes=2**30)
    kinds = {array.dtype for _, array in nn.utils.tree_flatten(network.parameters())}
    assert kinds == {mx.float32}
    assert seen and seen[-1][0] <= seen[-1][1]
    assert mx.allclose(network(mx.ones((1, 64))), before, atol=0.05)


def test_weights_stay_packed_when_float32_would_not_fit() -> None:
    network = _quantised()
    assert not widen(network, lambda *_: None, available_bytes=1000)
    assert isinstance(network.layers[0], nn.QuantizedLinear)


def test_load_tells_what_the_model_is() -> None:
    said: list[Progress] = []
    model = load(tiny_model(Tiny(context=512)), Options(context=256), said.append)
    assert model.context_window == 256
    assert model.capabilities == ("chat", "completions", "decisions", "tools", "structured_output")
    assert model.end_tokens == {258}
    assert model.weights_bytes > 100_000
    assert {progress.phase for progress in said} == {"weights", "tokenizer"}


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(tiny_model(), folder / "model"))


def test_failures_have_a_kind_and_one_line(tmp_path: Path) -> None:
    def failure(folder: Path) -> LoadError:
        with pytest.raises(LoadError) as raised:
            load(folder, Options(), lambda _: None)
        assert "\n" not in str(raised.value)
        return raised.value

    assert failure(tmp_path / "nowhere").kind is FailureKind.MISSING
    folder = _copy(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nonesuch"}))
    assert failure(folder).kind is FailureKind.UNSUPPORTED
    (folder / "config.json").write_text(json.dumps(config | {"model_file": "evil.py"}))
    assert "custom module" in str(failure(folder))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert failure(folder).kind is FailureKind.UNUSABLE
    (folder / "model.safetensors").unlink()
    assert failure(folder).kind is FailureKind.MISSING


def test_a_missing_shard_and_a_cache_that_can_not_be_batched_are_told_apart() -> None:
    missing = ValueError("Missing 2 parameters: \nmodel.layers.1.x,\nmodel.layers.1.y.")
    assert explain(missing).kind is FailureKind.MISSING
    cache = ValueError("<class 'ChunkedKVCache'> does not yet support batching with history")
    failure = explain(cache, "the first token failed")
    assert failure.kind is FailureKind.UNSUPPORTED
    assert str(failure).startswith("the first token failed: <class")
    assert str(explain(KeyError("x"))) == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", '{"version": '),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "\x00\udcff"),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "{"),
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "llama"}'),
        ("model.safetensors", ""),
        ("model.safetensors", "no weights at all"),
    ],
)
def test_files_that_make_no_model_do_so_every_time(tmp_path: Path, file: str, content: str | None) -> None:
    """A kind of its own: nobody tries such a load again."""
    folder = _copy(tmp_path)
    if content is None:
        (folder / file).unlink()
        (folder / file).mkdir()
    else:
        (folder / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LoadError) as raised:
        load(folder, Options(), lambda _: None)
    assert raised.value.kind is FailureKind.UNUSABLE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), FailureKind.UNUSABLE),
        (OSError("Can't load the configuration of 'x'."), FailureKind.UNUSABLE),
        (OSError(errno.EMFILE, "Too many open files"), FailureKind.OTHER),
        (OSError(errno.EIO, "Input/output error"), FailureKind.OTHER),
        (ConnectionResetError(errno.ECONNRESET, "reset"), FailureKind.OTHER),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FailureKind.MEMORY),
        (RuntimeError("[load_safetensors] Invalid json header length file x"), FailureKind.UNUSABLE),
        (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory"), FailureKind.MEMORY),
        (RuntimeError("[METAL] Command buffer execution failed: Hang"), FailureKind.OTHER),
        (ImportError("No module named 'x'"), FailureKind.UNUSABLE),
    ],
)
def test_what_may_be_gone_next_time_is_told_from_what_lasts(error: Exception, kind: FailureKind) -> None:
    assert explain(error).kind is kind
    # Where nothing but files is read, what says nothing of itself is about them; the system's word stands.
    known = isinstance(error, OSError) or kind is not FailureKind.OTHER
    assert explain(error, unknown=FailureKind.UNUSABLE).kind is (kind if known else FailureKind.UNUSABLE)


def test_running_out_of_memory_is_told_apart() -> None:
    assert explain(RuntimeError("[malloc_or_wait] Unable to allocate 99 bytes.")).kind is FailureKind.MEMORY
    assert explain(MemoryError()).kind is FailureKind.MEMORY


def test_a_model_without_a_chat_template_can_not_chat(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    del configuration["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    assert load(folder, Options(), lambda _: None).capabilities == ("completions", "structured_output")

"""What can't be imported is refused with a sentence, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.importing import (
    PARTIAL_PREFIX,
    Imported,
    ImportEvent,
    ImportFailed,
    ImportProgress,
    decode_event,
)
from tests.fixtures.gguf_files import GgufFile, tiny_gguf
from tests.fixtures.tiny import Tiny
from worker.gguf.architecture import plan_import
from worker.gguf.convert import import_gguf
from worker.gguf.errors import GgufError
from worker.gguf.header import read_header
from worker.gguf.tokenizer import build_tokenizer

Change = Callable[[GgufFile], None]


def silent(event: ImportEvent) -> None:
    pass


def refusal(source: Path, folder: Path) -> str:
    """The sentence of the refusal; checks that nothing was made."""
    with pytest.raises(GgufError) as caught:
        import_gguf(source, folder, silent)
    assert not folder.exists()
    assert not list(folder.parent.glob(f"{PARTIAL_PREFIX}*"))
    return str(caught.value)


def setting(key: str, value: object) -> Change:
    return lambda file: file.values.__setitem__(key, value)


def without(key: str) -> Change:
    return lambda file: file.values.__delitem__(key)


def dropped(name: str) -> Change:
    return lambda file: file.tensors.__delitem__(name)


def typed(name: str, kind: str) -> Change:
    return lambda file: file.types.__setitem__(name, kind)


def reshaped(file: GgufFile) -> None:
    file.tensors["blk.1.ffn_up.weight"] = file.tensors["blk.1.ffn_up.weight"][:-1]


def extra(file: GgufFile) -> None:
    file.tensors["blk.0.ffn_gate_exps.weight"] = np.zeros((64, 64), np.float32)


def odd_frequencies(file: GgufFile) -> None:
    file.tensors["rope_freqs.weight"] = np.arange(1, 9, dtype=np.float32)


@pytest.mark.parametrize(
    "kind", ["Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0"]
)
def test_another_tensor_type_is_named(tmp_path: Path, kind: str) -> None:
    # Blocks of up to 256 values need rows that long.
    tiny = Tiny(hidden=256, layers=1)
    source = tiny_gguf(
        tmp_path / "a.gguf", tiny=tiny, matrix_type="Q4_0", change=typed("blk.0.attn_v.weight", kind)
    )
    message = refusal(source, tmp_path / "model")
    assert f"tensor blk.0.attn_v.weight has type {kind}," in message
    assert "Q4_0, Q4_1, Q8_0" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda file: setattr(file, "architecture", "falcon"), "architecture 'falcon' can't be imported"),
        (setting("llama.expert_count", 8), "mixture of experts"),
        (setting("split.count", 3), "one of 3 parts of a split model"),
        (setting("general.type", "adapter"), "holds a adapter, not a model"),
        (lambda file: file.tensors.clear(), "no tensors"),
        (dropped("blk.1.attn_k.weight"), "tensor blk.1.attn_k.weight is missing"),
        (dropped("token_embd.weight"), "token_embd.weight is missing"),
        (reshaped, "blk.1.ffn_up.weight has the shape (127, 64); its metadata asks for (128, 64)"),
        (extra, "blk.0.ffn_gate_exps.weight has no place"),
        (without("llama.block_count"), "llama.block_count is missing"),
        (setting("llama.block_count", 1_000_000_000), "1000000000 layers but holds only"),
        (setting("llama.block_count", "two"), "llama.block_count is not a whole number"),
        (setting("llama.attention.head_count", 0), "head_count is 0"),
        (setting("llama.attention.head_count_kv", 3), "attention heads don't fit"),
        (setting("llama.attention.head_count_kv", [2, 1]), "differs between layers"),
        (setting("llama.attention.value_length", 8), "heads of different sizes"),
        (setting("llama.rope.dimension_count", 8), "only a part of each head"),
        (without("llama.attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon is missing"),
        (without("llama.context_length"), "llama.context_length is missing"),
        (odd_frequencies, "are not Llama 3's"),
        (without("tokenizer.ggml.model"), "holds no tokenizer"),
        (setting("tokenizer.ggml.model", "bert"), "of the kind 'bert'"),
        (setting("tokenizer.ggml.pre", "future"), "'future', is not known"),
        (without("tokenizer.ggml.pre"), "does not say how it cuts text"),
        (without("tokenizer.ggml.merges"), "has no merges"),
        (setting("tokenizer.ggml.merges", ["t h", "zz yy"]), "can't be rebuilt"),
        (setting("tokenizer.ggml.tokens", ["a"] * 263), "a token twice"),
        (setting("tokenizer.ggml.tokens", [*map(str, range(300))]), "300 tokens, the embeddings only 263"),
        (setting("tokenizer.ggml.token_type", [1, 1]), "263 tokens and kinds for 2"),
        (setting("tokenizer.chat_template", 7), "tokenizer.chat_template is not a text"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path: Path, change: Change, expected: str) -> None:
    assert expected in refusal(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model")


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "longrope", "factor": 4.0}, "'longrope'"),
        ({"type": "linear", "factor": 4.0, "attn_factor": 2.0}, "scales its attention"),
    ],
)
def test_rope_scaling_that_mlx_lm_lacks_is_refused(
    tmp_path: Path, scaling: dict[str, object], expected: str
) -> None:
    def change(file: GgufFile) -> None:
        file.values.update({f"llama.rope.scaling.{key}": value for key, value in scaling.items()})

    assert expected in refusal(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(100), "format version 1;"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(100), "big-endian"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "the file is incomplete"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(content)
    assert expected in refusal(source, tmp_path / "model")


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    source = tiny_gguf(tmp_path / "a.gguf")
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * share)])
    assert "the file is incomplete" in refusal(source, tmp_path / "model")


@pytest.fixture(scope="module")
def header_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "a.gguf").read_bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_only_ever_a_refusal(header_bytes: bytes, data: st.DataObject) -> None:
    """Whatever bytes change: a plan, or GgufError; no other exception, no endless loop, no huge memory."""
    damaged = bytearray(header_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, 11_000))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        header = read_header(memoryview(bytes(damaged)))
        plan = plan_import(header, memoryview(bytes(damaged)))
        build_tokenizer(header.metadata, vocabulary=plan.vocabulary, context=1)
    except GgufError as error:
        assert str(error)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("x")
    with pytest.raises(GgufError, match="exists already"):
        import_gguf(tiny_gguf(tmp_path / "a.gguf"), tmp_path / "model", silent)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["mine"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def disk_fills(event: ImportEvent) -> None:
        if isinstance(event, ImportProgress) and event.phase == "weights":
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        import_gguf(tiny_gguf(tmp_path / "a.gguf"), tmp_path / "model", disk_fills)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_what_a_crash_left_is_removed_by_the_next_import(tmp_path: Path) -> None:
    abandoned, fresh = (tmp_path / f"{PARTIAL_PREFIX}model-{number}" for number in (1, 2))
    for partial in (abandoned, fresh):
        partial.mkdir()
        (partial / "model.safetensors").write_bytes(b"half")
    hour_ago = time.time() - 3600
    os.utime(abandoned, (hour_ago, hour_ago))
    import_gguf(tiny_gguf(tmp_path / "a.gguf"), tmp_path / "model", silent)
    assert not abandoned.exists()
    assert fresh.exists()


def command(source: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "worker.gguf", str(source), "--out", str(folder), *more]


def test_the_process_tells_what_it_does(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "a.gguf")
    done = subprocess.run(command(source, tmp_path / "model"), capture_output=True, check=True)
    events = [decode_event(line) for line in done.stdout.splitlines()]
    assert isinstance(events[-1], Imported)
    assert all(isinstance(event, ImportProgress) for event in events[:-1])
    record = json.loads((tmp_path / "model" / "import.json").read_text())
    assert record["file"] == "a.gguf"
    assert record["size_bytes"] == source.stat().st_size
    assert record["name"] == "Tiny" and record["license"] == "mit"
    assert record["tensor_types"] == {"F32": 21}

    again = subprocess.run(command(source, tmp_path / "model"), capture_output=True, check=False)
    assert again.returncode == 1
    failed = decode_event(again.stdout.splitlines()[-1])
    assert isinstance(failed, ImportFailed) and "exists already" in failed.message


@pytest.mark.parametrize("missing", ["nothing.gguf", "."])
def test_a_file_that_can_t_be_read_is_a_sentence(tmp_path: Path, missing: str) -> None:
    done = subprocess.run(command(tmp_path / missing, tmp_path / "model"), capture_output=True, check=False)
    assert done.returncode == 1
    assert isinstance(decode_event(done.stdout.splitlines()[-1]), ImportFailed)
    assert b"Traceback" not in done.stderr


@pytest.fixture(scope="module")
def big_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gigabyte, most of it a hole: its checksum is still under way when the first line arrives."""
    path = tiny_gguf(tmp_path_factory.mktemp("gguf") / "a.gguf")
    os.truncate(path, 1 << 30)
    return path


@pytest.mark.parametrize("how", ["signal", "lifeline", "reader gone"])
def test_told_to_stop_it_leaves_nothing(tmp_path: Path, big_file: Path, how: str) -> None:
    (tmp_path / "out").mkdir()
    process = subprocess.Popen(
        command(big_file, tmp_path / "out" / "model", "--lifeline"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    process.stdout.readline()
    if how == "signal":
        process.send_signal(signal.SIGTERM)
    elif how == "lifeline":
        process.stdin.close()
    else:
        process.stdout.close()
    assert process.wait(timeout=20) == 143
    process.stdin.close()
    process.stdout.close()
    assert not list((tmp_path / "out").iterdir())

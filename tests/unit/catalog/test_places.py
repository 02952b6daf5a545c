"""Where models are found: the hub's cache, LM Studio's folder, folders of the settings; and how soon."""

import json
import time
from pathlib import Path

import pytest

from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.home import Home
from supervisor.settings import CatalogSettings, ModelSettings, Settings
from tests.fixtures.models import write_fake_model

EVERYWHERE = CatalogSettings()
COMMIT = "0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home")


class Disk:
    """A user's disk with the places on it."""

    def __init__(self, home: Home, root: Path) -> None:
        self._home = home
        self.hub = root / "hub"
        self.lm_studio = root / ".lmstudio" / "models"
        self.environ = {"HF_HUB_CACHE": str(self.hub), "HOME": str(root)}

    def in_hub(self, hub_id: str, commit: str = COMMIT, *, ref: str | None = "main") -> Path:
        """A model as the hub's tools keep it: the snapshot's files are links to blobs."""
        repository = self.hub / f"models--{hub_id.replace('/', '--')}"
        blobs = write_fake_model(repository / "blobs")
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for path in blobs.iterdir():
            (snapshot / path.name).symlink_to(path)
        (repository / "refs").mkdir(exist_ok=True)
        if ref is not None:
            (repository / "refs" / ref).write_text(commit)
        return snapshot

    def catalog(self, places: CatalogSettings = EVERYWHERE, **models: ModelSettings) -> Catalog:
        return Catalog(self._home, Settings(catalog=places, models=models), self.environ)


@pytest.fixture
def disk(home: Home, tmp_path: Path) -> Disk:
    return Disk(home, tmp_path)


def ids(catalog: Catalog) -> list[str]:
    return [entry.id for entry in catalog.entries()]


def problem(catalog: Catalog, name: str) -> str:
    return str(catalog.resolve(name).problem)


def test_every_place_is_looked_at(home: Home, disk: Disk, tmp_path: Path) -> None:
    snapshot = disk.in_hub("mlx-community/Tiny-4bit")
    write_fake_model(disk.lm_studio / "someone" / "Tiny-MLX")
    write_fake_model(tmp_path / "shelf" / "plain")
    write_fake_model(tmp_path / "shelf" / "org" / "nested")
    write_fake_model(tmp_path / "single")
    write_fake_model(home.models / "own")
    write_fake_model(home.path / "inside" / "beside")
    folders = (str(tmp_path / "shelf"), str(tmp_path / "single"), "inside", "/not/there")
    catalog = disk.catalog(CatalogSettings(folders=folders))
    places = {entry.id: entry.place for entry in catalog.entries()}
    assert places == {
        "beside": "folder",
        "mlx-community/Tiny-4bit": "hub",
        "org/nested": "folder",
        "own": "own",
        "plain": "folder",
        "single": "folder",
        "someone/Tiny-MLX": "lmstudio",
    }
    assert all(entry.problem is None for entry in catalog.entries())
    hub = catalog.resolve("mlx-community/Tiny-4bit")
    assert (hub.directory, hub.revision) == (snapshot, COMMIT)
    assert catalog.problems == ("catalog.folders: there is no folder /not/there",)
    assert ids(disk.catalog(CatalogSettings(hub=False, lm_studio=False))) == ["own"]


def test_what_is_no_model_is_listed_only_where_models_belong(home: Home, disk: Disk, tmp_path: Path) -> None:
    """Others keep all kinds of things beside: data sets, GGUF files, pictures."""
    for folder in (disk.lm_studio / "a" / "gguf", disk.hub / "models--a--gguf" / "snapshots" / COMMIT):
        folder.mkdir(parents=True)
        (folder / "Big-Q4_K.gguf").write_bytes(b"GGUF")
    (disk.hub / "datasets--a--b" / "snapshots" / COMMIT).mkdir(parents=True)
    (disk.hub / "models--nothing--yet").mkdir()
    shelf = tmp_path / "shelf" / "gguf"
    shelf.mkdir(parents=True)
    (shelf / "Big-Q4_K.gguf").write_bytes(b"GGUF")
    catalog = disk.catalog(CatalogSettings(folders=(str(tmp_path / "shelf"),)))
    assert ids(catalog) == ["gguf"]
    assert "must be imported: mlx-supervisor import Big-Q4_K.gguf" in problem(catalog, "gguf")


def test_downloads_that_did_not_finish_say_so(disk: Disk) -> None:
    half = disk.in_hub("org/half")
    (half / "model.safetensors").unlink()
    (half.parents[1] / "blobs" / "abc.incomplete").write_bytes(b"x")
    begun = disk.hub / "models--org--begun" / "blobs"
    begun.mkdir(parents=True)
    (begun / "abc.incomplete").write_bytes(b"x")
    broken = disk.in_hub("org/broken")
    (broken / "model.safetensors").unlink()
    catalog = disk.catalog()
    assert "has not finished" in problem(catalog, "org/half")
    assert "org/half" in problem(catalog, "org/half")
    assert "has not finished" in problem(catalog, "org/begun")
    assert "it has no weights" in problem(catalog, "org/broken")


def test_the_revision_that_main_has_is_taken(disk: Disk) -> None:
    old = disk.in_hub("org/model", "aaaaaaaa", ref="v1")
    new = disk.in_hub("org/model", "bbbbbbbb")
    alone = disk.in_hub("org/pinned", "cccccccc", ref=None)
    catalog = disk.catalog(
        tagged=ModelSettings(source="org/model@v1"),
        exact=ModelSettings(source="org/model@aaaaaaaa"),
        gone=ModelSettings(source="org/model@v9"),
    )
    assert catalog.resolve("org/model").directory == new
    assert catalog.resolve("org/pinned").directory == alone
    for name in ("tagged", "exact"):
        assert (catalog.resolve(name).directory, catalog.resolve(name).revision) == (old, "aaaaaaaa")
    assert "pull org/model@v9" in problem(catalog, "gone")
    (new.parents[1] / "refs" / "main").write_text("aaaaaaaa")
    catalog.refresh()
    assert catalog.resolve("org/model").directory == old


def test_one_model_in_two_places_has_two_ids_that_stay(home: Home, disk: Disk) -> None:
    hub = disk.in_hub("org/model")
    second = write_fake_model(disk.lm_studio / "org" / "model")
    catalog = disk.catalog()
    assert {entry.id: entry.place for entry in catalog.entries()} == {
        "org/model": "lmstudio",
        "org/model@hub": "hub",
    }
    assert catalog.resolve("org/model@hub").directory == hub
    # A broken one does not stand in the way of a whole one.
    (second / "model.safetensors").unlink()
    catalog.refresh()
    assert catalog.resolve("org/model").directory == hub
    assert "no weights" in problem(catalog, "org/model@lmstudio")


def test_a_configured_model_is_the_one_that_was_found(disk: Disk) -> None:
    """Else a client that asks by the hub's name would load the same weights a second time."""
    disk.in_hub("org/model")
    catalog = disk.catalog(mine=ModelSettings(source="org/model", context=100))
    assert ids(catalog) == ["mine"]
    assert catalog.resolve("mine").also == ("org/model",)
    assert catalog.resolve("org/model") is catalog.resolve("mine")


def test_what_did_not_change_stays_the_same_object(disk: Disk) -> None:
    kept = disk.in_hub("org/kept")
    changed = disk.in_hub("org/changed")
    catalog = disk.catalog(mine=ModelSettings(source="org/kept"))
    before = {entry.id: entry for entry in catalog.entries()}
    config = {"model_type": "llama", "max_position_embeddings": 99}
    (changed / "config.json").unlink()
    (changed / "config.json").write_text(json.dumps(config))
    catalog.refresh()
    after = {entry.id: entry for entry in catalog.entries()}
    assert after["mine"] is before["mine"] and after["mine"].directory == kept
    assert after["org/changed"].context == 99
    catalog.refresh(Settings(models={"mine": ModelSettings(source="org/kept", context=7)}))
    assert catalog.resolve("mine").context == 7


def test_hundreds_of_models(home: Home, disk: Disk) -> None:
    """How long it takes with thousands, `make bench` measures."""
    source = write_fake_model(disk.hub / "template")
    contents = {path.name: path.read_bytes() for path in source.iterdir()}
    for number in range(500):
        org, snapshot = f"org{number % 20}", disk.hub / f"models--org{number % 20}--m{number}"
        if number % 2:
            snapshot = snapshot / "snapshots" / COMMIT
            (snapshot.parents[1] / "refs").mkdir(parents=True)
            (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
        else:
            snapshot = home.models / org / f"m{number}"
        snapshot.mkdir(parents=True)
        for name, content in contents.items():
            (snapshot / name).write_bytes(content)
    time.sleep(0.06)  # what was written a moment ago may still change within a tick of the clock
    catalog = disk.catalog()
    assert len(catalog.entries()) == 500
    assert all(entry.problem is None for entry in catalog.entries())
    before = catalog.entries()
    catalog.refresh()
    assert catalog.entries() == before


def entry_with(disk: Disk, home: Home, **config: object) -> ModelEntry:
    folder = write_fake_model(home.models / "a")
    fields = {"model_type": "llama", **config}
    (folder / "config.json").write_text(json.dumps(fields))
    return disk.catalog().resolve("a")


@pytest.mark.parametrize(
    ("config", "quantization"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "4-bit"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "mxfp4"),
        ({"quantization": {"bits": 8, "mode": "affine", "model.layers.0": {"bits": 4}}}, "8-bit"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "4-bit awq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"text_config": {"quantization": {"bits": 3}}}, "3-bit"),
        ({"quantization": "yes"}, "f32"),
        ({}, "f32"),
    ],
)
def test_how_weights_are_packed(disk: Disk, home: Home, config: dict[str, object], quantization: str) -> None:
    assert entry_with(disk, home, **config).quantization == quantization


def test_what_nobody_can_run_says_why(disk: Disk, home: Home) -> None:
    assert "can't run its architecture, whisper" in str(entry_with(disk, home, model_type="whisper").problem)
    assert "never run here" in str(entry_with(disk, home, model_file="evil.py").problem)
    # mlx-lm has it under another name; encoders run without it.
    assert entry_with(disk, home, model_type="mistral").problem is None
    assert entry_with(disk, home, model_type="modernbert").problem is None


def test_what_it_can_is_told_from_its_files(disk: Disk, home: Home) -> None:
    folder = write_fake_model(home.models / "a")
    catalog = disk.catalog()
    assert catalog.resolve("a").capabilities == ()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    catalog.refresh()
    assert catalog.resolve("a").capabilities == ("chat", "tools", "structured_output")
    (folder / "chat_template.jinja").write_text("{{ messages }}</think>")
    catalog.refresh()
    assert catalog.resolve("a").capabilities == ("chat", "tools", "structured_output", "thinking")
    (folder / "modules.json").write_text("[]")
    catalog.refresh()
    assert catalog.resolve("a").capabilities == ("embeddings",)
    assert entry_with(disk, home, vision_config={"depth": 2}).vision
    template = home.path / "mine.jinja"
    write_fake_model(home.models / "b")
    chosen = disk.catalog(b=ModelSettings(chat_template=str(template)))
    assert problem(chosen, "b") == "its chat_template is no file"
    template.write_text("{{ messages }}")
    chosen.refresh()
    assert (chosen.resolve("b").problem, chosen.resolve("b").capabilities) == (None, ("chat", "tools"))

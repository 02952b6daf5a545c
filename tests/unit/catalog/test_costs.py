"""What a model counts for: expected, seen, and remembered."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shared.status import Memory
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.costs import _IMMATERIAL as IMMATERIAL
from supervisor.catalog.costs import (
    COST_CONTEXT,
    KEPT_DAYS,
    LEAST_CONTEXT,
    Cost,
    Costs,
    lasting_bytes,
)
from supervisor.catalog.footprint import PROCESS_BYTES, Demand, estimate, read_size
from supervisor.catalog.machine import Machine
from supervisor.database import Database
from supervisor.home import Home
from supervisor.settings import ModelSettings, Settings
from tests.fixtures.cache_kinds import write_kind
from tests.fixtures.tiny import Tiny, write_tiny

MIB = 2**20
GIB = 2**30
GPU = Machine("test GPU", "metal", 64 * GIB, 48 * GIB)
DAY_S = 86_400


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home")


def entry_of(home: Home, name: str = "tiny", **settings: object) -> ModelEntry:
    """The entry of a model in our own folder, scanned."""
    model = msgspec.structs.replace(ModelSettings(), **settings)
    return Catalog(home, Settings(models={name: model})).resolve(name)


def test_the_rows_that_count_have_a_bounded_length_together(home: Home) -> None:
    write_tiny(home.models / "short", Tiny(context=2048))
    write_tiny(home.models / "long", Tiny(context=1_000_000))
    size = read_size(home.models / "long")

    def total(context: int) -> int:
        return estimate(size, GPU, Demand(context=context)).total_bytes

    def counted(context: int) -> object:
        # The same tokens in eight rows take a little more: logits for each.
        return pytest.approx(total(context), rel=0.001)

    costs = Costs(GPU)
    assert costs.cost(entry_of(home, "short")).estimate_bytes == counted(2048)
    long = costs.cost(entry_of(home, "long"))
    assert long.estimate_bytes == counted(COST_CONTEXT)
    assert total(COST_CONTEXT) < total(1_000_000)
    assert long.least_bytes == total(LEAST_CONTEXT) < long.estimate_bytes
    # Who names a context wants it.
    assert costs.cost(entry_of(home, "long", context=500_000)).estimate_bytes == counted(500_000)


@pytest.mark.parametrize("kind", ["mamba2", "falcon_h1"])
def test_states_and_windows_count_for_every_row_that_may_run(home: Home, kind: str) -> None:
    write_kind(home.models / kind, kind)
    costs = Costs(GPU)
    alone = costs.cost(entry_of(home, kind, max_concurrency=1)).estimate_bytes
    many = costs.cost(entry_of(home, kind, max_concurrency=64)).estimate_bytes
    assert many > alone


def test_adapters_count(home: Home, tmp_path: Path) -> None:
    write_tiny(home.models / "tiny", Tiny())
    adapter = tmp_path / "sql"
    adapter.mkdir()
    (adapter / "adapters.safetensors").write_bytes(bytes(5 * MIB))
    costs = Costs(GPU)
    without = costs.cost(entry_of(home)).estimate_bytes
    adapters = {"sql": str(adapter), "gone": str(tmp_path / "gone")}
    assert costs.cost(entry_of(home, adapters=adapters)).estimate_bytes == without + 5 * MIB


def test_the_larger_of_estimate_and_measurement_counts(home: Home) -> None:
    write_tiny(home.models / "tiny", Tiny())
    entry = entry_of(home)
    costs = Costs(GPU)
    estimated = costs.cost(entry).estimate_bytes
    assert costs.cost(entry) == Cost(costs.cost(entry).least_bytes, estimated, None)
    costs.observe(entry, estimated - 1)
    assert costs.cost(entry).measured_bytes == estimated - 1
    assert costs.cost(entry).bytes == estimated
    costs.observe(entry, 2 * estimated)
    costs.observe(entry, estimated)
    assert costs.cost(entry).bytes == 2 * estimated


def test_a_model_that_could_use_more_than_there_is_gets_all_of_it() -> None:
    cost = Cost(least_bytes=10, estimate_bytes=30, measured_bytes=80)
    assert cost.within(100) == 80
    assert cost.within(50) == 50
    assert cost.within(10) == 10
    # Not even a short row: refused, with the number that would do.
    assert cost.within(9) == 10


async def test_footprints_outlive_the_supervisor_and_belong_to_the_model(home: Home) -> None:
    folder = write_tiny(home.models / "tiny", Tiny())
    write_tiny(home.models / "other", Tiny(layers=3))
    database = Database(home.state_db)
    costs = Costs(GPU, database)
    await costs.load()
    costs.observe(entry_of(home), 7 * GIB)
    await database.close()

    database = Database(home.state_db)
    costs = Costs(GPU, database)
    await costs.load()
    assert costs.cost(entry_of(home)).measured_bytes == 7 * GIB
    assert costs.cost(entry_of(home, "other")).measured_bytes is None
    # What it holds depends on these settings, and not on those.
    assert costs.cost(entry_of(home, context=1000)).measured_bytes is None
    assert costs.cost(entry_of(home, aliases=("a",), idle_unload_s=5.0)).measured_bytes == 7 * GIB
    # The same model under another name is the same model; another model under this name is not.
    folder.rename(home.models / "moved")
    assert costs.cost(entry_of(home, "moved")).measured_bytes == 7 * GIB
    write_tiny(folder, Tiny(layers=4))
    assert costs.cost(entry_of(home)).measured_bytes is None
    await database.close()


async def test_a_leak_is_forgotten_after_some_days_of_use(home: Home) -> None:
    write_tiny(home.models / "tiny", Tiny())
    entry, now = entry_of(home), 20_000 * DAY_S
    database = Database(home.state_db)
    costs = Costs(GPU, database, clock=lambda: now)
    costs.observe(entry, 40 * GIB)
    for _ in range(KEPT_DAYS - 1):
        now += 30 * DAY_S
        costs.observe(entry, GIB)
    assert costs.cost(entry).measured_bytes == 40 * GIB
    now += DAY_S
    costs.observe(entry, GIB)
    assert costs.cost(entry).measured_bytes == GIB
    await database.close()
    again = Costs(GPU, Database(home.state_db))
    await again.load()
    assert again.cost(entry).measured_bytes == GIB


def damaged(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def absurd(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 99999999}')


def headless(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)


@pytest.mark.parametrize("damage", [damaged, absurd, headless])
def test_what_can_not_be_understood_counts_with_its_files(home: Home, damage: Callable[[Path], None]) -> None:
    folder = write_tiny(home.models / "tiny", Tiny())
    damage(folder)
    files = sum(path.stat().st_size for path in folder.iterdir())
    costs = Costs(GPU)
    assert costs.cost(entry_of(home)) == Cost(files + PROCESS_BYTES, files + PROCESS_BYTES)
    gone = ModelEntry("gone", home.models / "gone", ModelSettings())
    assert costs.cost(gone).bytes == PROCESS_BYTES
    costs.observe(gone, GIB)
    assert costs.cost(gone).bytes == GIB


def test_a_changed_folder_is_looked_at_again(home: Home) -> None:
    folder = write_tiny(home.models / "tiny", Tiny(layers=2))
    unscanned = ModelEntry("tiny", folder, ModelSettings())
    costs = Costs(GPU)
    before = costs.cost(unscanned).bytes
    (folder / "model.safetensors").unlink()
    write_tiny(folder, Tiny(layers=12))
    assert costs.cost(unscanned).bytes > before
    assert costs.cost(entry_of(home)).bytes > before


def test_settings_that_do_not_matter_exist() -> None:
    assert set(ModelSettings.__struct_fields__) > IMMATERIAL


def test_what_a_worker_gives_back_when_asked_does_not_count() -> None:
    memory = Memory(footprint_bytes=100, cache_bytes=20, prompt_cache_bytes=30, weights_bytes=40)
    assert lasting_bytes(memory) == 50
    # Where the system counts less than mlx holds, the weights are there all the same.
    assert lasting_bytes(Memory(footprint_bytes=10, cache_bytes=20, weights_bytes=40)) == 40


def test_a_draft_counts_with_its_weights_and_one_row(home: Home) -> None:
    write_tiny(home.models / "large", Tiny(layers=8))
    write_tiny(home.models / "small", Tiny())
    costs = Costs(GPU)
    alone = costs.cost(entry_of(home, "large"))
    drafted = costs.cost(entry_of(home, "large", draft="small"))
    small = estimate(read_size(home.models / "small"), GPU, Demand(context=2048))
    added = small.weights_bytes + small.kv_bytes
    assert drafted.estimate_bytes == alone.estimate_bytes + added
    assert drafted.least_bytes == alone.least_bytes + added

"""Removing models, and cleaning up: what goes, what stays, and who is asked first."""

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from shared.errors import PublicError
from supervisor.catalog.cached import CachedRepository, remove, size_of
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.garbage import Garbage, find_garbage, remove_garbage
from supervisor.catalog.removal import Removal, Use, plan, take_away
from supervisor.settings import ModelSettings

DAY_S = 86_400


class Disk:
    """Our own models folder, and a Hugging Face cache."""

    def __init__(self, base: Path) -> None:
        self.models = base / "models"
        self.cache = base / "hub"
        self.models.mkdir()
        self.cache.mkdir()
        self.loaded: dict[str, Use] = {}
        self.entries: list[ModelEntry] = []

    def own(self, name: str, size: int = 1000) -> Path:
        folder = self.models / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(size))
        return folder

    def snapshot(self, repo: str, commit: str, refs: tuple[str, ...] = (), **blobs: int) -> Path:
        """A snapshot with a link `NAME` to a blob `NAME` of so many bytes, for each of `blobs`."""
        repository = self.cache / f"models--{repo.replace('/', '--')}"
        folder = repository / "snapshots" / commit / "sub"
        folder.mkdir(parents=True)
        (repository / "blobs").mkdir(exist_ok=True)
        (repository / "refs").mkdir(exist_ok=True)
        for name, size in blobs.items():
            (repository / "blobs" / name).write_bytes(bytes(size))
            (folder / name).symlink_to(f"../../../blobs/{name}")
        for ref in refs:
            (repository / "refs" / ref).write_text(commit)
        return folder.parent

    def entry(self, model_id: str, directory: Path) -> ModelEntry:
        entry = ModelEntry(model_id, directory, ModelSettings())
        self.entries.append(entry)
        return entry

    def plan(self, entry: ModelEntry) -> Removal:
        return plan(entry, self.entries, models=self.models, cache=self.cache, use_of=self.loaded.get)

    def refused(self, entry: ModelEntry, code: str) -> str:
        before = sorted(self.models.parent.rglob("*"))
        with pytest.raises(PublicError) as caught:
            self.plan(entry)
        assert (caught.value.status, caught.value.code) == (409, code)
        assert sorted(self.models.parent.rglob("*")) == before
        assert str(self.models.parent) not in caught.value.message
        return caught.value.message

    def garbage(self, running: tuple[str, ...] = (), later_s: float = 0) -> dict[str, Garbage]:
        kept = [entry.directory for entry in self.entries]
        found = find_garbage(self.models, self.cache, kept=kept, running=running, now_s=time.time() + later_s)
        return {f"{item.kind} {item.name}": item for item in found}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def carry_out(removal: Removal) -> None:
    for folder in take_away(removal):
        shutil.rmtree(folder)


def test_an_own_model_goes_with_its_organisation_s_empty_folder(disk: Disk) -> None:
    single, inner, last = disk.own("one"), disk.own("org/a"), disk.own("org/b", 500)
    for folder, size, left in ((single, 1000, True), (inner, 1000, True), (last, 500, False)):
        removal = disk.plan(disk.entry(folder.name, folder))
        assert removal.freed_bytes == size
        carry_out(removal)
        assert not folder.exists()
        assert (disk.models / "org").exists() is left
        carry_out(removal)
    assert list(disk.models.iterdir()) == []


def test_a_link_among_our_models_is_all_that_goes(disk: Disk, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_bytes(bytes(9))
    (disk.models / "linked").symlink_to(elsewhere)
    removal = disk.plan(disk.entry("linked", disk.models / "linked"))
    assert removal.freed_bytes == 0
    carry_out(removal)
    assert (elsewhere / "model.safetensors").exists()
    assert not (disk.models / "linked").is_symlink()


def test_a_cached_model_goes_with_its_repository(disk: Disk) -> None:
    folder = disk.snapshot("org/m", "c" * 40, ("main",), weights=5000, config=10)
    old = disk.snapshot("org/m", "b" * 40, weights_before=70)
    other = disk.snapshot("org/n", "d" * 40, ("main",), weights=7)
    removal = disk.plan(disk.entry("org/m", folder))
    assert removal.freed_bytes == 5000 + 10 + 70 + 40
    carry_out(removal)
    assert not folder.exists() and not old.exists()
    assert other.exists()
    assert [path.name for path in disk.cache.iterdir()] == ["models--org--n"]


def test_blobs_that_another_model_has_stay(disk: Disk) -> None:
    mine = disk.snapshot("org/m", "c" * 40, ("main", "latest"), weights=5000, tokenizer=10)
    other = disk.snapshot("org/m", "d" * 40, ("v1",), other_weights=70)
    (other / "tokenizer").symlink_to("../../blobs/tokenizer")
    disk.entry("pinned", other)
    removal = disk.plan(disk.entry("org/m", mine))
    assert removal.freed_bytes == 5000
    assert removal.kept == "10 B stay: pinned has them as well"
    carry_out(removal)
    assert not mine.exists()
    assert (other / "tokenizer").read_bytes() == bytes(10)
    assert (other / "sub" / "other_weights").read_bytes() == bytes(70)
    repository = CachedRepository(disk.cache / "models--org--m")
    assert {file.name for file in repository.refs()} == {"v1"}


def test_the_store_that_repositories_share_is_never_touched(disk: Disk) -> None:
    store = disk.cache / "blobs" / "ab"
    store.mkdir(parents=True)
    (store / "abcd").write_bytes(bytes(5000))
    folder = disk.snapshot("org/m", "c" * 40, ("main",), config=10)
    (disk.cache / "models--org--m/blobs/weights").symlink_to("../../blobs/ab/abcd")
    (folder / "weights").symlink_to("../../blobs/weights")
    removal = disk.plan(disk.entry("org/m", folder))
    assert removal.freed_bytes == 10 + 40
    carry_out(removal)
    assert (store / "abcd").exists()


def test_what_is_loaded_stays_and_who_has_it_is_said(disk: Disk) -> None:
    entry = disk.entry("m", disk.own("m"))
    disk.loaded["m"] = Use("ready", 4711, 1, 1)
    assert disk.refused(entry, "model_in_use") == (
        "'m' is loaded (ready, pid 4711, 2 requests); unload it first: mlx-supervisor unload m"
    )
    disk.loaded["m"] = Use("starting", None, 0, 0)
    assert "(starting)" in disk.refused(entry, "model_in_use")
    # One that was given up has no process.
    disk.loaded["m"] = Use("failed", None, 0, 0)
    assert disk.plan(entry).freed_bytes == 1000
    # Another name for the same files.
    disk.entry("alias", entry.directory)
    assert "'m' and 'alias' have the same files" in disk.refused(entry, "model_shared")
    disk.loaded["alias"] = Use("ready", 4712, 0, 0)
    assert "'alias' is loaded (ready, pid 4712)" in disk.refused(entry, "model_in_use")


def test_what_is_not_ours_stays(disk: Disk, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    assert "in a folder of your own" in disk.refused(disk.entry("mine", mine), "not_ours")
    nowhere = ModelEntry("nowhere", Path(), ModelSettings(), problem="it is not there")
    assert "There are no files of 'nowhere': it is not there." in disk.refused(nowhere, "nothing_to_remove")
    # Our folder itself, a part of a model, an organisation with another model in it.
    disk.refused(disk.entry("all", disk.models), "not_ours")
    disk.entry("org/a", disk.own("org/a"))
    assert "'org/a' are among" in disk.refused(disk.entry("org", disk.models / "org"), "model_shared")
    (disk.models / "org/a/part/deep").mkdir(parents=True)
    disk.refused(disk.entry("part", disk.models / "org/a/part/deep"), "not_ours")
    disk.refused(disk.entry("blobs", disk.snapshot("o/m", "c" * 40).parents[1] / "blobs"), "not_ours")
    # The cache itself, and what only looks as if it were in it.
    disk.refused(disk.entry("cache", disk.cache), "not_ours")
    disk.refused(disk.entry("dataset", disk.cache / "datasets--a--b" / "snapshots" / "c"), "not_ours")


def test_what_is_being_downloaded_stays(disk: Disk) -> None:
    entry = disk.entry("org/m", disk.snapshot("org/m", "c" * 40, ("main",), weights=1))
    locks = disk.cache / ".locks" / "models--org--m"
    locks.mkdir(parents=True)
    with (locks / "mlx-supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "pull --cancel org/m" in disk.refused(entry, "download_running")
        assert disk.garbage(later_s=9 * DAY_S) == {}
    carry_out(disk.plan(entry))
    assert not locks.exists()


def test_a_removal_that_broke_off_is_garbage(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = disk.own("m")

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("shutil.rmtree", broken)
    with pytest.raises(OSError):
        remove(folder)
    monkeypatch.undo()
    # Nobody finds half a model under its name.
    assert not folder.exists()
    assert disk.garbage() == {}
    left = next(disk.models.iterdir())
    gone = subprocess.Popen(["true"])
    gone.wait()
    left.rename(left.with_name(f".removing-m-{gone.pid}"))
    assert disk.garbage()["unfinished removal m"].size_bytes == 1000


# Garbage.


def test_models_are_no_garbage(disk: Disk) -> None:
    disk.own("m")
    disk.snapshot("org/m", "c" * 40, ("main",), weights=1)
    disk.snapshot("org/by-commit", "d" * 40, weights=1)
    assert disk.garbage(later_s=9 * DAY_S) == {}


def test_old_revisions_go_unless_a_model_has_them(disk: Disk) -> None:
    disk.snapshot("org/m", "c" * 40, ("main",), weights=5000, tokenizer=10)
    old = disk.snapshot("org/m", "d" * 40, old_weights=70)
    (old / "tokenizer").symlink_to("../../blobs/tokenizer")
    older = disk.snapshot("org/m", "e" * 40, older_weights=80)
    (older / "old_weights").symlink_to("../../blobs/old_weights")
    disk.entry("resident", older)
    assert set(disk.garbage()) == {"old revision org/m@dddddddd"}
    # Its weights are a kept model's too, so that nothing but its links goes.
    assert disk.garbage()["old revision org/m@dddddddd"].size_bytes == 0
    disk.entries.clear()
    found = disk.garbage()
    assert {name: item.size_bytes for name, item in found.items()} == {
        "old revision org/m@dddddddd": 70,
        "old revision org/m@eeeeeeee": 80,
    }
    assert remove_garbage(found.values()) == 150
    blobs = {path.name for path in (disk.cache / "models--org--m" / "blobs").iterdir()}
    assert blobs == {"weights", "tokenizer"}
    assert disk.garbage(later_s=9 * DAY_S) == {}


@pytest.mark.parametrize("record", [False, True])
def test_an_unfinished_download_is_kept_for_a_day(disk: Disk, record: bool) -> None:
    disk.snapshot("org/m", "c" * 40, ("main",), config=10)
    repository = disk.cache / "models--org--m"
    (repository / "blobs" / "weights.incomplete").write_bytes(bytes(500))
    (repository / "blobs" / "done").write_bytes(bytes(300))
    if record:
        (repository / ".mlx-supervisor.json").write_bytes(b"{}")
    assert disk.garbage() == {}
    assert disk.garbage(("org/m",), later_s=2 * DAY_S) == {}
    found = disk.garbage(later_s=2 * DAY_S)
    assert found["unfinished download org/m"].size_bytes == 500 + (2 if record else 0)
    assert found["unused blob org/m"].size_bytes == 300
    # One that was begun long ago and gone on with now is fresh, whatever it brought then.
    os.utime(repository / "blobs" / "done", (1, 1))
    assert disk.garbage() == ({} if record else {"unused blob org/m": disk.garbage()["unused blob org/m"]})
    remove_garbage(found.values())
    assert [path.name for path in (repository / "blobs").iterdir()] == ["config"]
    assert not (repository / ".mlx-supervisor.json").exists()


def test_imports_that_broke_off(disk: Disk) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for folder, pid in (("", gone.pid), ("org/", gone.pid), ("org/", os.getpid())):
        path = disk.models / f"{folder}.importing-{'x' if folder else 'y'}-{pid}"
        path.mkdir(parents=True)
        (path / "weights").write_bytes(bytes(100))
    found = disk.garbage()
    assert {name: item.size_bytes for name, item in found.items()} == {
        "unfinished import y": 100,
        "unfinished import x": 100,
    }
    # A pid that somebody else has by now keeps nothing for ever.
    assert len(find_garbage(disk.models, disk.cache, kept=(), running=(), now_s=time.time() + 2 * DAY_S)) == 3


def test_sizes_are_what_comes_free(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(bytes(10))
    (folder / "b").write_bytes(bytes(10))
    os.link(folder / "b", tmp_path / "b")
    (folder / "c").symlink_to(tmp_path / "b")
    assert size_of(folder) == 10
    assert size_of(tmp_path / "none") == 0


def test_places_that_are_not_there(tmp_path: Path) -> None:
    assert find_garbage(tmp_path / "a", tmp_path / "b", kept=(), running=(), now_s=0) == []

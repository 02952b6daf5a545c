"""The state database: whose it is, what a crash or damage leaves of it, and that nobody waits for it."""

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisor.database import Component, Database, DatabaseError

NOTES = (("CREATE TABLE notes (text TEXT NOT NULL)",),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = Database(path)
    yield database
    await database.close()


async def add(component: Component, text: str) -> None:
    await component.write(lambda connection: connection.execute("INSERT INTO notes VALUES (?)", (text,)))


async def notes(component: Component) -> list[str]:
    return await component.read(
        lambda connection: [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY rowid")]
    )


async def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    first = Database(path)
    await add(first.component("notes", NOTES), "kept")
    await first.close()
    await first.close()
    second = Database(path)
    assert await notes(second.component("notes", NOTES)) == ["kept"]
    await second.close()


async def test_its_files_are_the_owners_alone(path: Path, database: Database) -> None:
    path.touch(mode=0o644)
    previous = os.umask(0o022)
    try:
        await add(database.component("notes", NOTES), "private")
    finally:
        os.umask(previous)
    files = list(path.parent.glob("state.db*"))
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_a_link_is_not_followed(path: Path, tmp_path: Path, database: Database) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatabaseError, match="can't be used"):
        await notes(database.component("notes", NOTES))
    assert not (tmp_path / "elsewhere").exists()


async def test_a_write_that_raises_leaves_nothing(database: Database) -> None:
    component = database.component("notes", NOTES)
    await add(component, "before")

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES ('half')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await component.write(half)
    with pytest.raises(DatabaseError, match="refused"):
        await component.write(lambda connection: connection.execute("INSERT INTO notes VALUES (NULL)"))
    assert await notes(component) == ["before"]


async def test_schemas_grow_by_versions_each_component_by_its_own(path: Path) -> None:
    first = Database(path)
    await add(first.component("notes", NOTES), "old")
    await first.close()
    grown = (
        *NOTES,
        ("ALTER TABLE notes ADD COLUMN seen INTEGER DEFAULT 7", "CREATE INDEX i ON notes (seen)"),
    )
    second = Database(path)
    component = second.component("notes", grown)
    rows = await component.read(lambda connection: connection.execute("SELECT * FROM notes").fetchall())
    assert rows == [("old", 7)]
    other = second.component("other", (("CREATE TABLE other (x)",),))
    assert await other.read(lambda connection: connection.execute("SELECT * FROM other").fetchall()) == []
    await second.close()
    # The program before the upgrade refuses what it does not understand, and only that.
    third = Database(path)
    with pytest.raises(DatabaseError, match="newer version"):
        await notes(third.component("notes", NOTES))
    other = third.component("other", (("CREATE TABLE other (x)",),))
    assert await other.read(lambda connection: connection.execute("SELECT * FROM other").fetchall()) == []
    await third.close()


async def test_a_failed_step_of_a_schema_is_undone(path: Path) -> None:
    broken = (("CREATE TABLE notes (text TEXT NOT NULL)", "CREATE NONSENSE"),)
    first = Database(path)
    with pytest.raises(DatabaseError, match="refused"):
        await notes(first.component("notes", broken))
    assert await notes(first.component("notes", NOTES)) == []
    await first.close()


@pytest.mark.parametrize("damage", [b"not a database at all, but long enough", os.urandom(8192)])
async def test_a_damaged_file_is_set_aside_and_said(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    told: list[str] = []
    database = Database(path, on_trouble=told.append)
    component = database.component("notes", NOTES)
    await add(component, "new")
    assert await notes(component) == ["new"]
    await database.close()
    (aside,) = [file for file in path.parent.iterdir() if "damaged" in file.name]
    assert aside.read_bytes() == damage
    assert aside.name in told[0]


async def test_the_loop_goes_on_while_the_disk_is_slow(database: Database) -> None:
    component = database.component("notes", NOTES)
    release = threading.Event()
    slow = asyncio.ensure_future(component.write(lambda connection: release.wait(10)))
    component.post(lambda connection: connection.execute("INSERT INTO notes VALUES ('posted')"))
    await asyncio.sleep(0)
    assert not slow.done()
    release.set()
    assert await slow
    # In the order in which it was handed over.
    assert await notes(component) == ["posted"]


async def test_a_posted_write_that_fails_is_told(path: Path) -> None:
    told: list[str] = []
    database = Database(path, on_trouble=told.append)
    component = database.component("notes", NOTES)
    component.post(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
    await database.close()
    assert told == ["notes: the state database refused: no such table: nowhere"]
    component.post(lambda connection: told.append("too late"))
    with pytest.raises(DatabaseError, match="closed"):
        await notes(component)
    assert len(told) == 1


async def test_another_program_may_read_meanwhile(path: Path, database: Database) -> None:
    component = database.component("notes", NOTES)
    await add(component, "seen")
    other = sqlite3.connect(path)
    try:
        other.execute("BEGIN")
        assert other.execute("SELECT text FROM notes").fetchall() == [("seen",)]
        await add(component, "later")
        assert other.execute("SELECT text FROM notes").fetchall() == [("seen",)]
    finally:
        other.close()

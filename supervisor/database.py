"""The state database: `state.db` in the state folder, SQLite, for the owner alone.

One thread owns the connection. Whatever is read or written is handed to it, so the event loop never waits
for a disk. Each component has tables of its own and counts the versions of its own schema.
"""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import sqlite3  # else imported by the thread, when there is something to do: a start needs none of it

T = TypeVar("T")
Work = Callable[["sqlite3.Connection"], T]
"""What is done on the database's thread, inside a transaction: it returns what it found, not a cursor."""

_BUSY_S: Final = 5.0
"""How long another program that looks into the file may hold us up."""
_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS components (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"
_BESIDE: Final = ("", "-wal", "-shm")


class DatabaseError(Exception):
    """Raised when the database can't be used or refuses; the message is a sentence without paths."""


class Database:
    """The one connection. It is opened by the first work, so that making one costs nothing.

    `on_trouble` hears, on the database's thread, of what nobody waits for: a posted write that failed, a
    damaged file that was set aside.
    """

    def __init__(self, path: Path, *, on_trouble: Callable[[str], None] = lambda trouble: None) -> None:
        self._path = path
        self._on_trouble = on_trouble
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database")
        self._connection: sqlite3.Connection | None = None
        self._ready: set[str] = set()
        self._closed = False
        self.trouble: str | None = None
        """Why the last work could not be done; None when it was."""

    def component(self, name: str, versions: Sequence[Sequence[str]]) -> "Component":
        """The component with this name, whose schema is made by `versions`: the statements that lead from
        each version to the next, from an empty database on. What was released is never edited."""
        return Component(self, name, versions)

    async def close(self) -> None:
        """Finish what was handed over and let go of the file. Idempotent; afterwards all work is refused."""
        if self._closed:
            return
        self._closed = True
        await asyncio.wrap_future(self._thread.submit(self._close))
        self._thread.shutdown(wait=False)

    # What components ask for.

    def hand_over(self, component: "Component", work: Work[T], *, writes: bool) -> Future[T]:
        """Have `work` done after all that was handed over before. Raises DatabaseError once closed."""
        if self._closed:
            raise DatabaseError("the state database is closed")
        return self._thread.submit(self._run, component, work, writes)

    def tell(self, trouble: str) -> None:
        self._on_trouble(trouble)

    # On the thread.

    def _run(self, component: "Component", work: Work[T], writes: bool) -> T:
        try:
            done = self._do(component, work, writes)
        except DatabaseError as error:
            self.trouble = str(error)
            raise
        self.trouble = None
        return done

    def _do(self, component: "Component", work: Work[T], writes: bool) -> T:
        import sqlite3

        try:
            connection = self._opened()
            if component.name not in self._ready:
                with _transaction(connection, "IMMEDIATE"):
                    component.migrate(connection)
                self._ready.add(component.name)
            with _transaction(connection, "IMMEDIATE" if writes else "DEFERRED"):
                return work(connection)
        except sqlite3.Error as error:
            raise DatabaseError(f"the state database refused: {error}") from error
        except OSError as error:
            raise DatabaseError(f"the state database can't be used: {error.strerror}") from error

    def _opened(self) -> "sqlite3.Connection":
        if self._connection is None:
            import sqlite3

            try:
                self._connection = _connect(self._path)
            except sqlite3.OperationalError:
                raise  # a lock, a full disk: the file may be fine
            except sqlite3.DatabaseError as error:
                # What is in it can be learnt or said again; that nothing works any more would be worse.
                kept = _set_aside(self._path)
                self.tell(
                    f"the state database is damaged ({error}); it was renamed to {kept}, a new one begins"
                )
                self._connection = _connect(self._path)
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Component:
    """One component's tables. Its methods raise DatabaseError; work that is cancelled may still be done."""

    def __init__(self, database: Database, name: str, versions: Sequence[Sequence[str]]) -> None:
        self.name = name
        self._database = database
        self._versions = versions

    async def read(self, work: Work[T]) -> T:
        """What `work` finds, in one consistent view."""
        return await asyncio.wrap_future(self._database.hand_over(self, work, writes=False))

    async def write(self, work: Work[T]) -> T:
        """What `work` returns, once what it wrote is kept. All of it is undone when it raises."""
        return await asyncio.wrap_future(self._database.hand_over(self, work, writes=True))

    def post(self, work: Work[object]) -> None:
        """Write without waiting. `on_trouble` hears of a failure; nothing happens once it is closed."""

        def told(done: Future[object]) -> None:
            if (error := done.exception()) is not None:
                self._database.tell(f"{self.name}: {error}")

        with contextlib.suppress(DatabaseError):
            self._database.hand_over(self, work, writes=True).add_done_callback(told)

    def migrate(self, connection: "sqlite3.Connection") -> None:
        """Bring the tables to the newest version. Raises DatabaseError when they are newer than that."""
        connection.execute(_VERSIONS)
        row = connection.execute("SELECT version FROM components WHERE name = ?", (self.name,)).fetchone()
        version = row[0] if row else 0
        if version > len(self._versions):
            raise DatabaseError(
                f"{self.name} in the state database was written by a newer version of mlx-supervisor; "
                "use that one, or move state.db away"
            )
        for statements in self._versions[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(
            "INSERT INTO components VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET version = ?2",
            (self.name, len(self._versions)),
        )


@contextlib.contextmanager
def _transaction(connection: "sqlite3.Connection", kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has undone it by itself after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path) -> "sqlite3.Connection":
    """Open the file, which is made where it is missing. Raises OSError, sqlite3.Error, DatabaseError."""
    import sqlite3

    # Before SQLite does, which would make it readable for others and follow a link.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise DatabaseError("state.db is not a file of your own; move it away")
        # The files that SQLite puts beside it get the same mode.
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may cost the last moments, never the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path) -> str:
    name = f"{path.name}.damaged-{int(time.time())}"
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", path.with_name(f"{name}{suffix}"))
    return name

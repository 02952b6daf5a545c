"""Reading and writing the history's rows, on the database's thread."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from shared.responses.items import Item
from supervisor.history.schema import Part

if TYPE_CHECKING:
    import sqlite3

_COLUMNS = "previous, conversation, base, status, background, streamed, deleted, body, events, warnings"


class Row:
    """One kept response, without its items."""

    def __init__(self, response_id: str, columns: Sequence[Any]) -> None:
        self.id = response_id
        self.previous: str | None = columns[0]
        self.conversation: str | None = columns[1]
        self.base: int | None = columns[2]
        self.status: str = columns[3]
        self.background = bool(columns[4])
        self.streamed = bool(columns[5])
        self.deleted = bool(columns[6])
        self.body: bytes = columns[7]
        self.events: bytes | None = columns[8]
        self.warnings = tuple((columns[9] or "").splitlines())


def find_response(connection: "sqlite3.Connection", response_id: str) -> Row | None:
    """Also one that was deleted and is still built upon."""
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM responses WHERE id = ?",  # noqa: S608  # a constant
        (response_id,),
    ).fetchone()
    return None if found is None else Row(response_id, found)


def items_of(
    connection: "sqlite3.Connection", owner: str, part: Part, *, low: int = 0, high: int | None = None
) -> list[Item]:
    """The owner's items in order, from position `low` up to but not with `high`."""
    found = connection.execute(
        "SELECT body FROM items WHERE owner = ? AND part = ? AND position >= ? AND position < ? "
        "ORDER BY position",
        (owner, part, low, 2**62 if high is None else high),
    )
    return [orjson.loads(body) for (body,) in found]


def put_items(
    connection: "sqlite3.Connection", owner: str, part: Part, items: Iterable[Item], *, start: int = 0
) -> int:
    """Add items from position `start` on. Returns the bytes they take."""
    rows = [
        (owner, part, position, item.get("id", ""), orjson.dumps(item))
        for position, item in enumerate(items, start)
    ]
    connection.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?)", rows)
    return sum(len(row[4]) for row in rows)


def context_of(connection: "sqlite3.Connection", row: Row) -> list[Item]:
    """All that a response which goes on from this one has to read, this one's output included."""
    read: list[Item] = []
    chain: list[Row] = []
    found: Row | None = row
    while found is not None:
        if read := items_of(connection, found.id, Part.CONTEXT):
            read += items_of(connection, found.id, Part.OUTPUT)
            break
        chain.append(found)
        if found.previous is None:
            if found.conversation is not None:
                read = members_of(connection, found.conversation, before=found.base)
            break
        found = find_response(connection, found.previous)
    for link in reversed(chain):
        read += items_of(connection, link.id, Part.INPUT)
        read += items_of(connection, link.id, Part.OUTPUT)
    return read


def members_of(
    connection: "sqlite3.Connection", conversation_id: str, *, before: int | None = None
) -> list[Item]:
    """A conversation as a model reads it: what is condensed of it, and what came after that."""
    found = connection.execute(
        "SELECT condensed FROM conversations WHERE id = ?", (conversation_id,)
    ).fetchone()
    condensed = found[0] if found else 0
    # A response that read less than what was condensed later reads the items themselves.
    if before is not None and before < condensed:
        return items_of(connection, conversation_id, Part.MEMBER, high=before)
    head = items_of(connection, conversation_id, Part.CONTEXT)
    return head + items_of(connection, conversation_id, Part.MEMBER, low=condensed, high=before)


def drop_response(connection: "sqlite3.Connection", response_id: str) -> None:
    connection.execute("DELETE FROM items WHERE owner = ?", (response_id,))
    connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))


def drop_conversation(connection: "sqlite3.Connection", conversation_id: str) -> bool:
    connection.execute("DELETE FROM items WHERE owner = ?", (conversation_id,))
    return connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,)).rowcount > 0

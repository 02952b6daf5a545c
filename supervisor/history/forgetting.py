"""What is forgotten: what nobody used for long, and what is too much.

A response on which another one builds stays as long as that one does, so a chain goes from its end.
"""

from typing import TYPE_CHECKING

from supervisor.history.rows import drop_conversation, drop_response

if TYPE_CHECKING:
    import sqlite3

_END_OF_CHAIN = "NOT EXISTS (SELECT 1 FROM responses AS next WHERE next.previous = responses.id)"
_AT_REST = "status NOT IN ('queued', 'in_progress')"


def forget(connection: "sqlite3.Connection", *, before: float, max_bytes: int) -> int:
    """Drop what was used last `before` then (seconds since 1970), and the oldest until the rest takes no more
    than `max_bytes`. Returns how many responses and conversations went."""
    gone = forget_deleted(connection)
    while victims := _ends(connection, "used_at < ?", before):
        for victim in victims:
            drop_response(connection, victim)
        gone += len(victims)
    old = connection.execute("SELECT id FROM conversations WHERE used_at < ?", (before,)).fetchall()
    for (conversation_id,) in old:
        drop_conversation(connection, conversation_id)
    gone += len(old)
    while size_of(connection) > max_bytes and _forget_oldest(connection):
        gone += 1
    return gone


def forget_deleted(connection: "sqlite3.Connection") -> int:
    """Drop deleted responses on which nothing builds any more."""
    gone = 0
    while victims := _ends(connection, "deleted = ?", 1):
        for victim in victims:
            drop_response(connection, victim)
        gone += len(victims)
    return gone


def size_of(connection: "sqlite3.Connection") -> int:
    """Bytes that responses and conversations take."""
    total: int = connection.execute(
        "SELECT (SELECT coalesce(sum(bytes), 0) FROM responses) "
        "+ (SELECT coalesce(sum(bytes), 0) FROM conversations)"
    ).fetchone()[0]
    return total


def count(connection: "sqlite3.Connection") -> tuple[int, int, int, float | None]:
    """How many responses, conversations and items there are, and when (seconds since 1970) the one that goes
    first was used last."""
    found: tuple[int, int, int, float | None] = connection.execute(
        "SELECT (SELECT count(*) FROM responses), (SELECT count(*) FROM conversations), "
        "(SELECT count(*) FROM items), (SELECT min(used_at) FROM "
        "(SELECT used_at FROM responses UNION ALL SELECT used_at FROM conversations))"
    ).fetchone()
    return found


def _ends(connection: "sqlite3.Connection", condition: str, value: float) -> list[str]:
    """Some of the responses that fulfil the condition and on which nothing builds."""
    found = connection.execute(
        f"SELECT id FROM responses WHERE {condition} AND {_AT_REST} AND {_END_OF_CHAIN} LIMIT 500",  # noqa: S608
        (value,),
    )
    return [response_id for (response_id,) in found]


def _forget_oldest(connection: "sqlite3.Connection") -> bool:
    """Drop the response or the conversation that was used least recently; False when there is none."""
    response = connection.execute(
        f"SELECT used_at, id FROM responses WHERE {_AT_REST} AND {_END_OF_CHAIN} "  # noqa: S608
        "ORDER BY used_at LIMIT 1"
    ).fetchone()
    conversation = connection.execute(
        "SELECT used_at, id FROM conversations ORDER BY used_at LIMIT 1"
    ).fetchone()
    if response is None and conversation is None:
        return False
    if conversation is None or (response is not None and response[0] <= conversation[0]):
        drop_response(connection, response[1])
    else:
        drop_conversation(connection, conversation[1])
    return True

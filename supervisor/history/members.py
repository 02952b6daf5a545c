"""What is added to a conversation, on the database's thread."""

from typing import TYPE_CHECKING

from shared.responses.answer import Response
from shared.responses.items import Item
from supervisor.history.kept import Turn
from supervisor.history.rows import put_items
from supervisor.history.schema import Part

if TYPE_CHECKING:
    import sqlite3


def add_turn(
    connection: "sqlite3.Connection", conversation_id: str, response: Response, turn: Turn, now: float
) -> None:
    """What a response that has ended adds to its conversation, if that is still there."""
    if not append(connection, conversation_id, turn.input, now):
        return
    if turn.context is not None:
        # Else each turn that follows would condense the same again.
        connection.execute("DELETE FROM items WHERE owner = ? AND part = ?", (conversation_id, Part.CONTEXT))
        put_items(connection, conversation_id, Part.CONTEXT, turn.context)
        connection.execute("UPDATE conversations SET condensed = next WHERE id = ?", (conversation_id,))
    append(connection, conversation_id, response["output"], now)


def append(connection: "sqlite3.Connection", conversation_id: str, items: list[Item], now: float) -> bool:
    """Add items at the end; False when there is no such conversation."""
    found = connection.execute("SELECT next FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
    if found is None:
        return False
    size = put_items(connection, conversation_id, Part.MEMBER, items, start=found[0])
    connection.execute(
        "UPDATE conversations SET next = ?, bytes = bytes + ?, used_at = ? WHERE id = ?",
        (found[0] + len(items), size, now, conversation_id),
    )
    return True

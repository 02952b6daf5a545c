"""Conversations: items under one name, to which responses add.

Source: OpenAI's API reference, "Conversations".
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
import orjson

from shared.responses.items import Item, new_id
from supervisor.database import Database
from supervisor.history.members import append
from supervisor.history.pages import Page, Paging, page_of
from supervisor.history.rows import drop_conversation
from supervisor.history.schema import VERSIONS, Part

if TYPE_CHECKING:
    import sqlite3


class Conversation(msgspec.Struct, frozen=True):
    """The conversation object. `created_at` is in seconds since 1970."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class Conversations:
    """All of them. Methods raise DatabaseError when the database refuses."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._table = database.component("history", VERSIONS)
        self._clock = clock

    async def create(self, items: list[Item], metadata: Mapping[str, str]) -> Conversation:
        conversation = Conversation(new_id("conv"), int(self._clock()), dict(metadata))

        def write(connection: "sqlite3.Connection") -> None:
            data = orjson.dumps(conversation.metadata)
            connection.execute(
                "INSERT INTO conversations (id, created_at, used_at, bytes, metadata) VALUES (?, ?, ?, ?, ?)",
                (conversation.id, conversation.created_at, self._clock(), len(data), data),
            )
            append(connection, conversation.id, items, self._clock())

        await self._table.write(write)
        return conversation

    async def get(self, conversation_id: str) -> Conversation | None:
        return await self._table.read(lambda connection: _find(connection, conversation_id))

    async def update(self, conversation_id: str, metadata: Mapping[str, str]) -> Conversation | None:
        def write(connection: "sqlite3.Connection") -> Conversation | None:
            connection.execute(
                "UPDATE conversations SET metadata = ?, used_at = ? WHERE id = ?",
                (orjson.dumps(dict(metadata)), self._clock(), conversation_id),
            )
            return _find(connection, conversation_id)

        return await self._table.write(write)

    async def delete(self, conversation_id: str) -> bool:
        return await self._table.write(lambda connection: drop_conversation(connection, conversation_id))

    async def add(self, conversation_id: str, items: list[Item]) -> bool:
        """False when there is no such conversation."""

        def write(connection: "sqlite3.Connection") -> bool:
            return append(connection, conversation_id, items, self._clock())

        return await self._table.write(write)

    async def items(self, conversation_id: str, paging: Paging) -> Page | None:
        def read(connection: "sqlite3.Connection") -> Page | None:
            if _find(connection, conversation_id) is None:
                return None
            return page_of(connection, conversation_id, Part.MEMBER, paging)

        return await self._table.read(read)

    async def item(self, conversation_id: str, item_id: str) -> Item | None:
        def read(connection: "sqlite3.Connection") -> Item | None:
            found = connection.execute(
                "SELECT body FROM items WHERE owner = ? AND part = ? AND id = ?",
                (conversation_id, Part.MEMBER, item_id),
            ).fetchone()
            return None if found is None else orjson.loads(found[0])

        return await self._table.read(read)

    async def delete_item(self, conversation_id: str, item_id: str) -> bool:
        def write(connection: "sqlite3.Connection") -> bool:
            where = "owner = ? AND part = ? AND id = ?"
            key = (conversation_id, Part.MEMBER, item_id)
            size = connection.execute(
                f"SELECT sum(length(body)) FROM items WHERE {where}",  # noqa: S608  # a constant
                key,
            ).fetchone()[0]
            if size is None:
                return False
            connection.execute(f"DELETE FROM items WHERE {where}", key)  # noqa: S608
            connection.execute(
                "UPDATE conversations SET bytes = bytes - ? WHERE id = ?", (size, conversation_id)
            )
            return True

        return await self._table.write(write)


def _find(connection: "sqlite3.Connection", conversation_id: str) -> Conversation | None:
    found = connection.execute(
        "SELECT created_at, metadata FROM conversations WHERE id = ?", (conversation_id,)
    ).fetchone()
    return None if found is None else Conversation(conversation_id, found[0], orjson.loads(found[1]))

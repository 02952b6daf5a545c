"""The kept responses and conversations, for the event loop."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from shared.errors import PublicError
from shared.responses.answer import ENDED, Response
from shared.responses.items import Item
from supervisor.database import Database
from supervisor.history.forgetting import count, forget, forget_deleted, size_of
from supervisor.history.kept import Before, Kept, StoreStats, Turn
from supervisor.history.members import add_turn
from supervisor.history.pages import Page, Paging, page_of
from supervisor.history.rows import context_of, find_response, items_of, members_of, put_items
from supervisor.history.schema import VERSIONS, Part
from supervisor.settings import HistorySettings

if TYPE_CHECKING:
    import sqlite3

INTERRUPTED: Final = "The server was stopped before this response was complete; ask again."


class History:
    """Belongs to the supervisor. Methods raise DatabaseError when the database refuses."""

    def __init__(
        self, database: Database, settings: HistorySettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table = database.component("history", VERSIONS)
        self._settings = settings
        self._clock = clock

    async def start(self) -> None:
        """End what a supervisor that went away left unfinished, and forget what is too old."""

        def write(connection: "sqlite3.Connection") -> None:
            _fail_unfinished(connection, self._clock())
            self._forget(connection)

        await self._table.write(write)

    # Responses.

    def keep(self, response: Response, turn: Turn, *, events: bytes | None = None) -> None:
        """Keep a response, over what was kept of it. Whatever is asked afterwards finds it."""
        self._table.post(lambda connection: self._keep(connection, response, turn, events))

    async def keep_now(self, response: Response, turn: Turn) -> None:
        """As `keep`, and wait until it is."""
        await self._table.write(lambda connection: self._keep(connection, response, turn, None))

    async def response(self, response_id: str) -> Kept | None:
        def read(connection: "sqlite3.Connection") -> Kept | None:
            row = find_response(connection, response_id)
            if row is None or row.deleted:
                return None
            response: Response = orjson.loads(row.body)
            response["output"] = items_of(connection, response_id, Part.OUTPUT)
            return Kept(response, row.background, row.streamed, row.events, row.warnings)

        return await self._table.read(read)

    async def delete_response(self, response_id: str) -> bool:
        """What others build upon is only hidden, until they are gone."""

        def write(connection: "sqlite3.Connection") -> bool:
            changed = connection.execute(
                "UPDATE responses SET deleted = 1 WHERE id = ? AND NOT deleted", (response_id,)
            ).rowcount
            forget_deleted(connection)
            return changed > 0

        return await self._table.write(write)

    async def input_items(self, response_id: str, paging: Paging) -> Page | None:
        def read(connection: "sqlite3.Connection") -> Page | None:
            from supervisor.history.rows import find_response

            row = find_response(connection, response_id)
            if row is None or row.deleted:
                return None
            return page_of(connection, response_id, Part.INPUT, paging)

        return await self._table.read(read)

    async def before(self, previous: str | None, conversation: str | None) -> Before | None:
        """What a response reads that goes on from one of these; None when it is not kept."""

        def work(connection: "sqlite3.Connection") -> Before | None:

            if previous is not None:
                row = find_response(connection, previous)
                if row is None or row.deleted:
                    return None
                if row.status not in ENDED:
                    raise PublicError(
                        400,
                        "response_in_progress",
                        f"The response '{previous[:80]}' is not complete yet; wait for its end.",
                        param="previous_response_id",
                    )
                connection.execute("UPDATE responses SET used_at = ? WHERE id = ?", (self._clock(), previous))
                return Before(context_of(connection, row))
            found = connection.execute(
                "SELECT next FROM conversations WHERE id = ?", (conversation,)
            ).fetchone()
            if found is None:
                return None
            assert conversation is not None
            return Before(members_of(connection, conversation), found[0])

        return await self._table.write(work)

    async def item(self, item_id: str) -> Item | None:
        """The kept item with this id, wherever it is."""

        def read(connection: "sqlite3.Connection") -> Item | None:
            found = connection.execute("SELECT body FROM items WHERE id = ? LIMIT 1", (item_id,)).fetchone()
            return None if found is None else orjson.loads(found[0])

        return await self._table.read(read)

    async def stats(self) -> StoreStats:
        def read(connection: "sqlite3.Connection") -> StoreStats:
            responses, conversations, items, oldest = count(connection)
            return StoreStats(
                responses,
                conversations,
                items,
                size_of(connection),
                self._settings.max_bytes,
                self._settings.keep_s,
                oldest,
            )

        return await self._table.read(read)

    def _keep(
        self, connection: "sqlite3.Connection", response: Response, turn: Turn, events: bytes | None
    ) -> None:

        response_id = response["id"]
        conversation = (response.get("conversation") or {}).get("id")
        connection.execute("DELETE FROM items WHERE owner = ?", (response_id,))
        body = orjson.dumps({**response, "output": []})
        size = len(body) + len(events or b"")
        size += put_items(connection, response_id, Part.CONTEXT, turn.context or ())
        size += put_items(connection, response_id, Part.INPUT, turn.input)
        size += put_items(connection, response_id, Part.OUTPUT, response["output"])
        now = self._clock()
        connection.execute(
            "INSERT INTO responses (id, previous, conversation, base, status, background, streamed, used_at, "
            "bytes, body, events, warnings) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) "
            "ON CONFLICT (id) DO UPDATE SET status = ?5, used_at = ?8, bytes = ?9, body = ?10, events = ?11, "
            "warnings = ?12",
            (
                response_id,
                response["previous_response_id"],
                conversation,
                turn.base,
                response["status"],
                turn.background,
                turn.streamed,
                now,
                size,
                body,
                events,
                "\n".join(turn.warnings) or None,
            ),
        )
        if conversation is not None and response["status"] in ("completed", "incomplete"):
            add_turn(connection, conversation, response, turn, now)
        self._forget(connection)

    def _forget(self, connection: "sqlite3.Connection") -> None:

        settings = self._settings
        forget(connection, before=self._clock() - settings.keep_s, max_bytes=settings.max_bytes)


def _fail_unfinished(connection: "sqlite3.Connection", now: float) -> None:
    found = connection.execute(
        "SELECT id, body FROM responses WHERE status IN ('queued', 'in_progress')"
    ).fetchall()
    for response_id, body in found:
        error = {"code": "server_error", "message": INTERRUPTED}
        failed = {**orjson.loads(body), "status": "failed", "error": error}
        connection.execute(
            "UPDATE responses SET status = 'failed', used_at = ?, body = ? WHERE id = ?",
            (now, orjson.dumps(failed), response_id),
        )

"""Lists of items, a page at a time.

Source: OpenAI's API reference, "List input items".
"""

from typing import TYPE_CHECKING, Literal

import msgspec
import orjson

from shared.responses.items import Item, missing_item
from supervisor.history.schema import Part

if TYPE_CHECKING:
    import sqlite3

MAX_LIMIT = 100


class Paging(msgspec.Struct, frozen=True):
    """Which page of a list."""

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    """The id of the last item of the page before."""


class Page(msgspec.Struct, frozen=True):
    """One page."""

    data: list[Item]
    has_more: bool
    object: Literal["list"] = "list"

    def shown(self) -> Item:
        """As it is answered; an empty page has no first and no last."""
        ids = [item["id"] for item in self.data]
        return {
            "object": self.object,
            "data": self.data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": self.has_more,
        }


def page_of(connection: "sqlite3.Connection", owner: str, part: Part, paging: Paging) -> Page:
    """Raises PublicError 404 for an `after` that is not in the list."""
    ascending = paging.order == "asc"
    bound = -1 if ascending else 2**62
    if paging.after is not None:
        found = connection.execute(
            "SELECT position FROM items WHERE owner = ? AND part = ? AND id = ?", (owner, part, paging.after)
        ).fetchone()
        if found is None:
            raise missing_item(paging.after, "after")
        bound = found[0]
    side, direction = (">", "ASC") if ascending else ("<", "DESC")
    rows = connection.execute(
        f"SELECT body FROM items WHERE owner = ? AND part = ? AND position {side} ? "  # noqa: S608
        f"ORDER BY position {direction} LIMIT ?",
        (owner, part, bound, paging.limit + 1),
    ).fetchall()
    return Page([orjson.loads(body) for (body,) in rows[: paging.limit]], len(rows) > paging.limit)

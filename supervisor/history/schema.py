"""The history's tables.

A response keeps its own input and output and the name of the one that it goes on from: a long conversation
is a chain. `items.part` says what an item is of its owner, a response or a conversation.
"""

from enum import IntEnum
from typing import Final

VERSIONS: Final = (
    (
        """
        CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            previous TEXT,
            conversation TEXT,
            base INTEGER,
            status TEXT NOT NULL,
            background INTEGER NOT NULL,
            streamed INTEGER NOT NULL,
            deleted INTEGER NOT NULL DEFAULT 0,
            used_at REAL NOT NULL,
            bytes INTEGER NOT NULL,
            body BLOB NOT NULL,
            events BLOB
        )
        """,
        "CREATE INDEX responses_previous ON responses (previous)",
        "CREATE INDEX responses_used ON responses (used_at, bytes)",
        """
        CREATE TABLE conversations (
            id TEXT PRIMARY KEY,
            created_at INTEGER NOT NULL,
            used_at REAL NOT NULL,
            bytes INTEGER NOT NULL,
            next INTEGER NOT NULL DEFAULT 0,
            condensed INTEGER NOT NULL DEFAULT 0,
            metadata BLOB NOT NULL
        )
        """,
        "CREATE INDEX conversations_used ON conversations (used_at, bytes)",
        """
        CREATE TABLE items (
            owner TEXT NOT NULL,
            part INTEGER NOT NULL,
            position INTEGER NOT NULL,
            id TEXT NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (owner, part, position)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX items_id ON items (id)",
    ),
    ("ALTER TABLE responses ADD COLUMN warnings TEXT",),
)


class Part(IntEnum):
    """What an item is of its owner."""

    CONTEXT = 0
    """What was read in place of all that was said before and in the input: it was condensed."""
    INPUT = 1
    OUTPUT = 2
    MEMBER = 3
    """Of a conversation."""

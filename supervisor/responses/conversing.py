"""`/v1/conversations` and what is below it.

Source: OpenAI's API reference, "Conversations".
"""

from typing import Final

import msgspec

from shared.errors import invalid
from shared.responses.asked import check_metadata
from shared.responses.items import Item, input_items, kept_item, missing_item, parse_item
from shared.validation import decode
from supervisor.history.conversations import Conversation, Conversations
from supervisor.history.history import History
from supervisor.responses.queries import Query
from supervisor.responses.turns import missing_conversation

MAX_ITEMS: Final = 20
"""Items that may be added at a time."""


class CreateAsked(msgspec.Struct, frozen=True):
    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class UpdateAsked(msgspec.Struct, frozen=True):
    metadata: dict[str, str] | None


class ItemsAsked(msgspec.Struct, frozen=True):
    items: list[Item]


class Conversing:
    """The routes; each returns what is answered. They raise PublicError and DatabaseError."""

    def __init__(self, conversations: Conversations, history: History) -> None:
        self._conversations = conversations
        self._history = history

    async def create(self, body: bytes) -> Conversation:
        asked = decode(body or b"{}", CreateAsked)
        check_metadata(asked.metadata)
        items = await self._items(asked.items or [])
        return await self._conversations.create(items, asked.metadata or {})

    async def get(self, conversation_id: str) -> Conversation:
        return _found(await self._conversations.get(conversation_id), conversation_id)

    async def update(self, conversation_id: str, body: bytes) -> Conversation:
        asked = decode(body, UpdateAsked)
        check_metadata(asked.metadata)
        updated = await self._conversations.update(conversation_id, asked.metadata or {})
        return _found(updated, conversation_id)

    async def delete(self, conversation_id: str) -> Item:
        if not await self._conversations.delete(conversation_id):
            raise missing_conversation(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def list_items(self, conversation_id: str, query: Query) -> Item:
        page = await self._conversations.items(conversation_id, query.paging())
        if page is None:
            raise missing_conversation(conversation_id)
        return page.shown()

    async def add_items(self, conversation_id: str, body: bytes) -> Item:
        asked = decode(body, ItemsAsked)
        if not asked.items:
            raise invalid("`items` must have at least one item.", param="items")
        items = await self._items(asked.items)
        if not await self._conversations.add(conversation_id, items):
            raise missing_conversation(conversation_id)
        return {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"],
            "last_id": items[-1]["id"],
            "has_more": False,
        }

    async def get_item(self, conversation_id: str, wanted: str) -> Item:
        item = await self._conversations.item(conversation_id, wanted)
        if item is None:
            await self.get(conversation_id)
            raise missing_item(wanted, "item_id")
        return item

    async def delete_item(self, conversation_id: str, wanted: str) -> Conversation:
        conversation = await self.get(conversation_id)
        if not await self._conversations.delete_item(conversation_id, wanted):
            raise missing_item(wanted, "item_id")
        return conversation

    async def _items(self, asked: list[Item]) -> list[Item]:
        """As they are kept."""
        if len(asked) > MAX_ITEMS:
            raise invalid(f"`items` may have {MAX_ITEMS} items at a time, not {len(asked)}.", param="items")
        items = []
        for index, item in enumerate(input_items(asked)):
            parse_item(item, f"items[{index}]")
            if item["type"] == "item_reference":
                found = await self._history.item(item["id"])
                if found is None:
                    raise missing_item(item["id"], f"items[{index}].id")
                item = found
            items.append(kept_item(item))
        return items


def _found(conversation: Conversation | None, conversation_id: str) -> Conversation:
    if conversation is None:
        raise missing_conversation(conversation_id)
    return conversation

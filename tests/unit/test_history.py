"""What the history keeps, and what it forgets."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.responses.items import Item
from supervisor.database import Database
from supervisor.history.conversations import Conversations
from supervisor.history.history import INTERRUPTED, History
from supervisor.history.kept import Turn
from supervisor.history.pages import Paging
from supervisor.settings import HistorySettings

DAY_S = 86400.0
SETTINGS = HistorySettings(keep_s=DAY_S, max_bytes=2**16)


class Kit:
    """A history whose clock is turned by hand."""

    def __init__(self, path: Path) -> None:
        self.now = 1_000_000.0
        self.database = Database(path)
        self.history = History(self.database, SETTINGS, clock=lambda: self.now)
        self.conversations = Conversations(self.database, clock=lambda: self.now)

    async def keep(self, name: str, previous: str | None = None, size: int = 10, **fields: Any) -> None:
        response = {
            "id": name,
            "status": "completed",
            "previous_response_id": previous,
            "output": [said("assistant", f"{name} out")],
            **fields,
        }
        await self.history.keep_now(response, Turn(input=[said("user", name.ljust(size, "."))]))

    async def there(self, *names: str) -> list[str]:
        return [name for name in names if await self.history.response(name) is not None]


def said(role: str, text: str) -> Item:
    return {"type": "message", "id": f"msg_{text[:20]}", "role": role, "content": text}


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    kit = Kit(tmp_path / "state.db")
    yield kit
    await kit.database.close()


async def test_a_chain_is_forgotten_from_its_end_and_not_while_it_is_used(kit: Kit) -> None:
    await kit.keep("one")
    await kit.keep("two", "one")
    await kit.keep("alone")
    kit.now += 0.9 * DAY_S
    await kit.keep("three", "two")
    kit.now += 0.9 * DAY_S
    await kit.history.start()
    assert await kit.there("one", "two", "three", "alone") == ["one", "two", "three"]
    before = await kit.history.before("three", None)
    assert before is not None and len(before.items) == 6
    kit.now += 2 * DAY_S
    await kit.history.start()
    assert await kit.there("one", "two", "three") == []
    assert (await kit.history.stats()).bytes == 0


async def test_what_is_too_much_goes_oldest_first(kit: Kit) -> None:
    conversation = await kit.conversations.create([said("user", "x" * 20_000)], {})
    for number in range(4):
        kit.now += 1
        await kit.keep(f"r{number}", size=20_000)
    assert await kit.conversations.get(conversation.id) is None
    assert await kit.there("r0", "r1", "r2", "r3") == ["r1", "r2", "r3"]
    assert (await kit.history.stats()).bytes <= SETTINGS.max_bytes
    stats = await kit.history.stats()
    assert (stats.responses, stats.conversations, stats.items) == (3, 0, 6)
    assert (stats.max_bytes, stats.oldest_used_at) == (SETTINGS.max_bytes, kit.now - 2)
    # One that is larger than all there may be is not kept, and takes what is older with it.
    await kit.keep("huge", size=70_000)
    assert await kit.there("huge") == []


async def test_what_is_deleted_is_hidden_until_nothing_builds_on_it(kit: Kit) -> None:
    await kit.keep("one")
    await kit.keep("two", "one")
    assert await kit.history.delete_response("one")
    assert not await kit.history.delete_response("one")
    assert await kit.there("one", "two") == ["two"]
    assert await kit.history.before("one", None) is None
    assert await kit.history.input_items("one", Paging()) is None
    before = await kit.history.before("two", None)
    assert before is not None and len(before.items) == 4
    assert await kit.history.delete_response("two")
    assert (await kit.history.stats()).bytes == 0


async def test_what_was_under_way_when_the_supervisor_went_is_failed(kit: Kit) -> None:
    await kit.keep("running", status="in_progress", output=[])
    kit.now += 10 * DAY_S
    await kit.history.start()
    kept = await kit.history.response("running")
    # Old as it is, whoever waits for it has its time to learn of the end.
    assert kept is not None and kept.response["status"] == "failed"
    assert kept.response["error"]["message"] == INTERRUPTED


async def test_a_conversation_keeps_its_order_and_counts_its_bytes(kit: Kit) -> None:
    conversation = await kit.conversations.create([said("user", "a"), said("user", "b")], {"k": "v"})
    await kit.keep("turn", conversation={"id": conversation.id})
    page = await kit.conversations.items(conversation.id, Paging(order="asc"))
    assert page is not None
    assert [item["content"] for item in page.data] == ["a", "b", "turn......", "turn out"]
    whole = (await kit.history.stats()).bytes
    assert await kit.conversations.delete_item(conversation.id, "msg_b")
    assert (await kit.history.stats()).bytes < whole
    assert not await kit.conversations.delete_item(conversation.id, "msg_b")
    again = await kit.history.before(None, conversation.id)
    assert again is not None and [item["content"] for item in again.items][1] == "turn......"

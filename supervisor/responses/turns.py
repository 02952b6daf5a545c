"""One request to the Responses API, resolved: what the model gets to read, and what is kept of it."""

import time
from typing import Any

import msgspec
import orjson

from shared.errors import PublicError
from shared.responses.answer import CONTEXT_HEADER, Context, Response, response_object
from shared.responses.asked import ResponsesAsked, missing_input
from shared.responses.items import Item, ItemReference, kept_item, missing_item, new_id, parse_item
from supervisor.catalog.catalog import ModelEntry
from supervisor.history.history import History
from supervisor.history.kept import Before, Turn
from supervisor.relay import Wanted
from supervisor.responses.memory import Memory

PREVIOUS = "previous_response_id"


class Resolved(msgspec.Struct, frozen=True):
    """A request that can go to a worker."""

    asked: ResponsesAsked
    entry: ModelEntry
    context: Context
    fields: dict[str, msgspec.Raw]
    """The request as the client sent it, field by field."""
    before: list[Item]
    """What it goes on from."""
    input: list[Item]
    """What is new."""
    shown: list[Item]
    """The same as it is kept."""
    base: int | None = None
    condensed: list[Item] | None = None
    """What stands for `before`, if that was too long."""

    def body(self, **changes: Any) -> bytes:
        """What the worker is asked. `changes` are fields that are told otherwise."""
        items = [*(self.before if self.condensed is None else self.condensed), *self.input]
        told = {name: msgspec.Raw(orjson.dumps(value)) for name, value in changes.items()}
        return msgspec.json.encode({**self.fields, "input": msgspec.Raw(orjson.dumps(items)), **told})

    def read(self) -> list[Item]:
        """All that the model reads, as it is kept."""
        if self.condensed is None:
            return [*self.before, *self.shown]
        return [*self.condensed, *map(kept_item, self.input)]

    def header(self, *, announced: int = 0) -> tuple[bytes, bytes]:
        """Tells the worker which response it answers, of which so many events are out already."""
        history = len(self.before if self.condensed is None else self.condensed)
        context = msgspec.structs.replace(self.context, sequence_number=announced, history=history)
        return CONTEXT_HEADER, msgspec.json.encode(context)

    def turn(self, warnings: tuple[str, ...] = (), *, background: bool = False) -> Turn:
        """What is kept beside the response object; `warnings` are its worker's."""
        return Turn(
            input=self.shown,
            base=self.base,
            context=None if self.condensed is None else self.read(),
            background=background,
            streamed=background and bool(self.asked.stream),
            warnings=warnings,
        )

    def announced(self, status: Any) -> Response:
        """The response before any worker has it."""
        defaults = self.entry.sampling
        return response_object(
            self.asked,
            self.context,
            model=self.entry.id,
            status=status,
            temperature=defaults.temperature,
            top_p=defaults.top_p,
        )


async def resolve(
    asked: ResponsesAsked, wanted: Wanted, history: History, memory: Memory | None = None
) -> Resolved:
    """Find all that the request refers to. `memory` is of a connection that keeps what is not stored.

    Raises PublicError: 400 without an input, 404 for what is not kept.
    """
    before = await _before(asked, history, memory)
    new = [
        await _referred(item, f"input[{index}].id", history) if item["type"] == "item_reference" else item
        for index, item in enumerate(asked.items)
    ]
    if not new and not before.items:
        raise missing_input()
    return Resolved(
        asked=asked,
        entry=wanted.entry,
        context=Context(new_id("resp"), int(time.time())),
        fields=msgspec.json.decode(wanted.body, type=dict[str, msgspec.Raw]),
        before=before.items,
        input=new,
        shown=[kept_item(item) for item in new],
        base=before.base,
    )


async def _before(asked: ResponsesAsked, history: History, memory: Memory | None) -> Before:
    previous, conversation = asked.previous_response_id, asked.conversation_id
    if previous is None and conversation is None:
        return Before()
    if previous is not None and memory is not None and (items := memory.recall(previous)) is not None:
        return Before(items)
    before = await history.before(previous, conversation)
    if before is not None:
        return before
    if previous is not None:
        raise PublicError(
            404,
            "previous_response_not_found",
            f"Previous response with id '{previous[:80]}' not found.",
            param=PREVIOUS,
        )
    raise missing_conversation(conversation or "", "conversation")


async def _referred(item: Item, param: str, history: History) -> Item:
    reference = parse_item(item, param)
    assert isinstance(reference, ItemReference)
    found = await history.item(reference.id)
    if found is None:
        raise missing_item(reference.id, param)
    return found


def missing_conversation(conversation_id: str, param: str | None = None) -> PublicError:
    """404 for a conversation that is not kept."""
    return PublicError(
        404,
        "conversation_not_found",
        f"Conversation with id '{conversation_id[:80]}' not found.",
        param=param,
    )

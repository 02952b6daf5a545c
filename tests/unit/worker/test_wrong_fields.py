"""Each field of each request in each wrong shape, and each number out of its range: 400 that names it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from shared.errors import PublicError
from shared.responses.asked import ResponsesAsked, parse_asked
from shared.responses.items import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    MessageItem,
    ReasoningItem,
)
from shared.responses.tools import FunctionTool
from tests.fixtures.wrong_fields import Step, Wrong, number_fields, wrong_bodies
from worker.api import chat_wire, completions_wire, messages_wire, responses_wire
from worker.api.decisions import DecisionsAsked
from worker.api.embeddings import EmbeddingsAsked
from worker.api.systemone import SystemOneAsked
from worker.api.validation import decode

Json = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
HUGE = (-(10**30), -(2**63), -1, 0, 2**64, 10**30, -1e300, 1e300)


def chat(body: bytes) -> None:
    chat_wire.to_request(decode(body, chat_wire.ChatAsked))


def completions(body: bytes) -> None:
    completions_wire.to_requests(decode(body, completions_wire.CompletionAsked))


def messages(body: bytes) -> None:
    messages_wire.to_request(decode(body, messages_wire.MessagesAsked))


def count_tokens(body: bytes) -> None:
    messages_wire.prompt_of(decode(body, messages_wire.CountAsked))


def responses(body: bytes) -> None:
    responses_wire.to_request(parse_asked(body), decode(body, responses_wire.Extras))


def decisions(body: bytes) -> None:
    decode(body, DecisionsAsked)


def systemone(body: bytes) -> None:
    decode(body, SystemOneAsked)


def embeddings(body: bytes) -> None:
    decode(body, EmbeddingsAsked)


class Part(NamedTuple):
    """A part of a body that has a type of its own: the type, the rest of the body, and where in it it is."""

    kind: type
    base: Json
    within: tuple[Step, ...] = ()


def item(kind: type, name: str) -> Part:
    return Part(kind, {"input": [{"type": name}]}, ("input", 0))


CHAT = {"messages": [USER]}
MESSAGES = {"messages": [USER], "max_tokens": 5}
READS: dict[Callable[[bytes], None], tuple[Part, ...]] = {
    chat: (
        Part(chat_wire.ChatAsked, CHAT),
        Part(chat_wire.OfficialTool, CHAT | {"tools": [TOOL]}, ("tools", 0)),
        Part(chat_wire.OfficialFormat, CHAT | {"response_format": {}}, ("response_format",)),
        Part(chat_wire.OfficialFunction, CHAT | {"functions": [{}]}, ("functions", 0)),
    ),
    completions: (Part(completions_wire.CompletionAsked, {"prompt": "x"}),),
    messages: (Part(messages_wire.MessagesAsked, MESSAGES),),
    count_tokens: (Part(messages_wire.CountAsked, CHAT),),
    responses: (
        Part(ResponsesAsked, {"input": "x"}),
        Part(responses_wire.Extras, {"input": "x"}),
        Part(FunctionTool, {"input": "x", "tools": [{"type": "function"}]}, ("tools", 0)),
        item(MessageItem, "message"),
        item(FunctionCall, "function_call"),
        item(FunctionCallOutput, "function_call_output"),
        item(ReasoningItem, "reasoning"),
        item(ItemReference, "item_reference"),
        item(Compaction, "compaction"),
    ),
    decisions: (Part(DecisionsAsked, {}),),
    systemone: (Part(SystemOneAsked, {}),),
    embeddings: (Part(EmbeddingsAsked, {"input": "x"}),),
}


def refused(read: Callable[[bytes], None], body: Json) -> str | None:
    """The field that is named, or what else became of `body`."""
    try:
        read(msgspec.json.encode(body))
    except PublicError as error:
        return error.param if error.status == 400 else f"{error.status}: {error.message}"
    return "taken as it is"


def faults(read: Callable[[bytes], None]) -> Iterator[Wrong]:
    for kind, base, within in READS[read]:
        yield from wrong_bodies(kind, base, *within)


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_whatever_is_of_the_wrong_shape_is_named(read: Callable[[bytes], None]) -> None:
    seen = 0
    for path, body in faults(read):
        seen += 1
        assert refused(read, body) == path, body
    assert seen > 40


@pytest.mark.parametrize("read", [chat, completions, messages, responses], ids=lambda read: read.__name__)
def test_no_number_is_too_large_to_be_understood(read: Callable[[bytes], None]) -> None:
    """Which of them are out of range is in the tables beside; none does worse than a 400."""
    for kind, base, within in READS[read]:
        for field in () if within else number_fields(kind):
            told = [refused(read, base | {field: value}) for value in HUGE]
            assert set(told) <= {field, "taken as it is"}, (field, told)
            # Nothing takes numbers that no machine could mean.
            assert told[0] == told[-1] == told[-2] == field

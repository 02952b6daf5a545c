"""Reply events as Anthropic's blocks and events."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from worker.api.messages_blocks import Added, Blocks, Closed, Opened, Step, tool_id
from worker.api.messages_stream import MessageStream
from worker.text.events import ReplyEvent, TextDelta
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning

CALL: tuple[ReplyEvent, ...] = (
    CallBegan(0, "call_1", "look"),
    CallArguments(0, '{"a"'),
    CallArguments(0, ":1}"),
)


def steps(*batches: Sequence[ReplyEvent]) -> list[Step]:
    blocks = Blocks()
    taken = [step for batch in batches for step in blocks.take(batch)]
    return [*taken, *blocks.finish()]


def told(*batches: Sequence[ReplyEvent], shows_thinking: bool = True) -> list[dict[str, Any]]:
    stream = MessageStream(shows_thinking=shows_thinking)
    data = b"".join([stream.begin({"id": "msg_1"}), *map(stream.say, batches), stream.end({}, {})])
    events = [event.split("\n") for event in data.decode().removesuffix("\n\n").split("\n\n")]
    for name, line in events:
        assert name == f"event: {json.loads(line.removeprefix('data: '))['type']}"
    return [json.loads(line.removeprefix("data: ")) for _, line in events]


def test_the_order_of_events() -> None:
    events = told(
        [Reasoning("h"), Reasoning("m")], [TextDelta("\n\n")], [TextDelta("Hi")], [*CALL, CallEnded(0)]
    )
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "hm"}
    assert deltas[1]["type"] == "signature_delta" and deltas[1]["signature"]
    assert deltas[2] == {"type": "text_delta", "text": "\n\nHi"}
    assert deltas[3] == {"type": "input_json_delta", "partial_json": '{"a":1}'}
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [start["index"] for start in starts] == [0, 1, 2]
    assert starts[2]["content_block"]["id"] == "toolu_1"


def test_thinking_that_is_not_wanted_is_signed_and_not_told() -> None:
    events = told([Reasoning("secret")], [TextDelta("Hi")], shows_thinking=False)
    assert "secret" not in json.dumps(events)
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "signature_delta",
        "text_delta",
    ]


def test_one_step_of_one_row_is_one_delta() -> None:
    (opened, added, closed) = steps([TextDelta("a"), TextDelta("b", flagged=True), TextDelta("c")])
    assert (opened, added, closed) == (Opened(0, "text"), Added(0, "text", "abc"), Closed(0, "text"))


@pytest.mark.parametrize(
    ("batches", "kinds"),
    [
        ([[Reasoning("x")], [TextDelta("\n\n")], [*CALL, CallEnded(0)]], ["thinking", "tool_use"]),
        ([[TextDelta("a")], [TextDelta(" ")], [TextDelta("b")]], ["text"]),
        ([[TextDelta(" \n")]], ["text"]),
        ([[]], []),
        (
            [[*CALL, CallEnded(0), CallBegan(1, "x", "look"), CallArguments(1, "{}")]],
            ["tool_use", "tool_use"],
        ),
    ],
)
def test_white_space_alone_is_no_block(batches: list[list[ReplyEvent]], kinds: list[str]) -> None:
    taken = steps(*batches)
    assert [step.kind for step in taken if isinstance(step, Opened)] == kinds
    assert [step.index for step in taken if isinstance(step, Closed)] == list(range(len(kinds)))


def test_a_call_that_is_none_is_closed_as_broken_and_told_as_text() -> None:
    taken = steps([*CALL], [CallVoided(0), TextDelta("<call>", flagged=True)])
    assert [step for step in taken if isinstance(step, Closed)] == [
        Closed(0, "tool_use", broken=True),
        Closed(1, "text"),
    ]


def test_a_call_that_was_cut_is_broken() -> None:
    assert steps([*CALL, CallCut(0)])[-1] == Closed(0, "tool_use", broken=True)
    assert steps([CallCut(None)]) == []


def test_a_signature_is_of_the_thinking() -> None:
    signatures = [
        next(step.signature for step in steps(batch) if isinstance(step, Closed))
        for batch in ([Reasoning("a"), Reasoning("b")], [Reasoning("ab")], [Reasoning("b")])
    ]
    assert signatures[0] == signatures[1] != signatures[2]


def test_ids_of_calls() -> None:
    assert tool_id("call_abc") == "toolu_abc"
    assert tool_id("AbCdEf123") == "AbCdEf123"  # Mistral's templates want nine letters back
    assert tool_id("functions.look:0").startswith("toolu_")

"""An answer whose grammar gave up is an error, not an answer that looks complete."""

import asyncio
from typing import cast

import pytest

from shared.errors import PublicError
from tests.unit.worker.test_assembler import Words
from worker.engine.activity import Feed
from worker.engine.constraint_rows import Control
from worker.engine.rows import Output, Row
from worker.reply import Account, Reply
from worker.request import Sampling
from worker.text.assembler import Assembler
from worker.text.events import FinishReason, ReplyEvent, TextDelta


class GaveUp:
    """What a row's control says when its grammar reached a limit of the parser."""

    failure = "too many items"


def reply(finish: FinishReason) -> Reply:
    account = Account("id", Feed())
    account.begin("chatcmpl", prompt_tokens=1, answers=1, stream=False)
    row = Row(id=1, prompt=[1], max_tokens=9, sampling=Sampling(), control=cast("Control", GaveUp()))
    assembler = Assembler(Words("[", "1"), (), prompt_tokens=1)
    made = Reply(row=row, assembler=assembler, cancel=lambda _: None, account=account, ready=asyncio.Event())
    made.push(Output(1, 0, None))
    assert made.push(Output(1, 1, finish))
    return made


async def test_what_there_is_comes_and_then_the_error() -> None:
    seen: list[ReplyEvent] = []
    with pytest.raises(PublicError) as raised:
        async for events in reply("stop").batches():
            seen += events
    assert seen == [TextDelta("[")]
    assert (raised.value.status, raised.value.code) == (500, "structure_failed")
    assert "too many items" in raised.value.message


async def test_a_limit_of_tokens_is_told_as_such() -> None:
    events = [event async for batch in reply("length").batches() for event in batch]
    assert getattr(events[-1], "reason", None) == "length"

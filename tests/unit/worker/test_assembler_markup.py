"""Replies with thinking and tool calls: tokens to reply events."""

from collections.abc import Iterable

from tests.unit.text.replies import TOOLS, dialect, tokenised
from worker.text.assembler import Assembler
from worker.text.events import Finished, FinishReason, ReplyEvent, TextDelta
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning
from worker.text.toolcalls.hermes import Hermes

DIALECT = dialect(Hermes)
CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


class Texts:
    """A detokenizer of texts in their order."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)

    def push(self, token: int) -> str:
        return next(self._texts)

    def flush(self) -> str:
        return ""


def assemble(
    text: str, end: FinishReason = "stop", *, stops: tuple[str, ...] = (), one_call: bool = False
) -> list[ReplyEvent]:
    """What comes of a reply cut into single characters and markers; "stop" is an end token behind it."""
    tokens = list(tokenised(DIALECT, text, range(len(text))))
    assembler = Assembler(
        Texts(text for _, text in tokens),
        stops,
        prompt_tokens=10,
        splitter=DIALECT.splitter(TOOLS, new_id=lambda: "id"),
        one_call=one_call,
    )
    finish: list[FinishReason | None] = [None] * len(tokens)
    numbers = [number for number, _ in tokens]
    if end == "length":
        finish[-1] = "length"
    else:
        numbers.append(0)
        finish.append("stop")
    events: list[ReplyEvent] = []
    for number, reason in zip(numbers, finish, strict=True):
        events += assembler.push(number, reason)
        if events and isinstance(events[-1], Finished):
            break
    return events


def ending(events: list[ReplyEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def shown(events: list[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thought(events: list[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def test_a_reply_with_calls_ends_with_tool_calls() -> None:
    events = assemble("<think>Hm.</think>Let me see.\n" + CALL)
    assert (thought(events), shown(events)) == ("Hm.", "Let me see.")
    calls = [e for e in events if isinstance(e, CallBegan | CallArguments | CallEnded)]
    assert calls[0] == CallBegan(0, "id", "get_time") and calls[-1] == CallEnded(0)
    assert "".join(e.delta for e in calls if isinstance(e, CallArguments)) == "{}"
    assert ending(events).reason == "tool_calls"
    assert ending(events).usage.reasoning == 3


def test_a_call_that_is_cut_is_length() -> None:
    """Fault 40."""
    events = assemble(CALL[:-14], "length")
    assert CallCut(0) in events
    assert ending(events).reason == "length" and not shown(events)


def test_a_call_that_does_not_parse_is_flagged_content() -> None:
    broken = '<tool_call>\n{"name": "get_time", "arguments": {]}\n</tool_call>'
    events = assemble(broken)
    assert CallVoided(0) in events
    assert shown(events) == broken
    assert all(event.flagged for event in events if isinstance(event, TextDelta))
    assert ending(events).reason == "stop"


def test_one_call_is_enough_when_only_one_is_wanted() -> None:
    events = assemble(CALL + "\n" + CALL, one_call=True)
    assert len([event for event in events if isinstance(event, CallBegan)]) == 1
    assert ending(events).reason == "tool_calls"
    assert ending(events).usage.completion < len(CALL)
    both = assemble(CALL + "\n" + CALL)
    assert len([event for event in both if isinstance(event, CallBegan)]) == 2


def test_stop_sequences_are_looked_for_in_the_answer_alone() -> None:
    events = assemble("<think>one END two</think>three END four", stops=("END", "get_time"))
    assert (thought(events), shown(events)) == ("one END two", "three ")
    assert (ending(events).reason, ending(events).stop) == ("stop", "END")
    assert ending(assemble(CALL, stops=("get_time",))).reason == "tool_calls"


def test_half_a_stop_sequence_before_a_call_is_shown_and_forgotten() -> None:
    events = assemble("said EN" + CALL + "D END more", stops=("END",))
    kinds = [type(event) for event in events]
    assert shown(events[: kinds.index(CallBegan)]) == "said EN"
    assert shown(events) == "said END "
    assert ending(events).stop == "END"

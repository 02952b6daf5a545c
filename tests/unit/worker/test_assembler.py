"""Tokens to reply events, with a detokenizer that says a fixed text for each token."""

from collections.abc import Sequence

from worker.text.assembler import Assembler
from worker.text.events import Finished, FinishReason, ReplyEvent, TextDelta, Usage


class Words:
    """Token n has the n-th text; -1 holds a character back."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def push(self, token: int) -> str:
        return self._texts[token] if token >= 0 else ""

    def flush(self) -> str:
        return ""


def assemble(
    texts: Sequence[str], stops: Sequence[str] = (), end: FinishReason = "length"
) -> list[ReplyEvent]:
    assembler = Assembler(Words(*texts), stops, prompt_tokens=10)
    events: list[ReplyEvent] = []
    for token in range(len(texts)):
        events += assembler.push(token, end if token == len(texts) - 1 else None)
        if events and isinstance(events[-1], Finished):
            break
    return events


def test_text_then_the_end() -> None:
    assert assemble(["a", "b"]) == [TextDelta("a"), TextDelta("b"), Finished("length", Usage(10, 2))]


def test_an_end_token_counts_and_has_no_text() -> None:
    assert assemble(["a", "<end>"], end="stop") == [TextDelta("a"), Finished("stop", Usage(10, 2))]


def test_what_follows_a_stop_sequence_is_neither_shown_nor_billed() -> None:
    """Fault 39: the engine is a step ahead; its tokens after the stop were counted."""
    events = assemble(["one", " st", "op! and", "more", "more"], ["stop!"])
    assert events == [TextDelta("one"), TextDelta(" "), Finished("stop", Usage(10, 3), "stop!")]


def test_a_stop_sequence_completed_by_the_last_token_allowed_is_a_stop() -> None:
    assert assemble(["a", "b"], ["ab"]) == [Finished("stop", Usage(10, 2), "ab")]


def test_half_a_stop_sequence_at_the_end_is_text() -> None:
    assert assemble(["a", "st"], ["stop"]) == [
        TextDelta("a"),
        TextDelta("st"),
        Finished("length", Usage(10, 2)),
    ]


def test_a_token_without_text_brings_no_event() -> None:
    assembler = Assembler(Words("x"), [], prompt_tokens=1)
    assert assembler.push(-1, None) == []

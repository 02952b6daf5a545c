"""Thinking is told from the answer, counted, and its markers are never shown."""

import pytest

from tests.unit.text.replies import THINK, dialect, pieces_of, read, seen, splitter, tokenised
from worker.text.pieces import Content, Reasoning
from worker.text.thinking import Thinking, select_thinking
from worker.text.toolcalls.family import Plain
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes

GEMMA = Thinking("<|channel>thought", "<channel|>")
tokens = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])


@tokens
def test_thinking_goes_to_reasoning_without_its_markers_and_line_breaks(tokens: bool) -> None:
    view = read(
        dialect(Plain, tokens=tokens), "<think>\nFirst.\n\nThen.\n</think>\n\nThe answer.\n", tools=()
    )
    assert (view.reasoning, view.content) == ("First.\n\nThen.", "The answer.\n")


@tokens
def test_a_prompt_that_ends_inside_a_block_starts_in_reasoning(tokens: bool) -> None:
    language = dialect(Plain, tokens=tokens)
    view = read(language, "\nHm.\n</think>\n\nYes.", thinking=True, tools=())
    assert (view.reasoning, view.content) == ("Hm.", "Yes.")


@tokens
def test_an_answer_without_thinking_is_all_content(tokens: bool) -> None:
    assert read(dialect(Plain, tokens=tokens), "a < b </thin", tools=()).content == "a < b </thin"


@tokens
def test_markers_of_several_tokens(tokens: bool) -> None:
    language = dialect(Plain, tokens=tokens, thinking=GEMMA)
    view = read(language, "<|channel>thought\nHm.\n<channel|>Yes.", tools=())
    assert (view.reasoning, view.content) == ("Hm.", "Yes.")


def test_a_model_without_thinking_has_no_markers() -> None:
    assert read(dialect(Plain, thinking=None), "<think>a</think>", tools=()).content == "<think>a</think>"


def test_markers_inside_a_call_are_text() -> None:
    text = '<tool_call>{"name": "write", "arguments": {"path": "<think>x</think>"}}</tool_call>'
    for with_tokens in (True, False):
        view = read(dialect(Hermes, tokens=with_tokens), text)
        assert view.calls == [("write", {"path": "<think>x</think>"})]
        assert not view.reasoning


def test_letters_that_look_like_a_marker_are_text_where_the_marker_is_a_token() -> None:
    language = dialect(Plain)
    pieces = pieces_of(language.splitter(), [(0, "<think>"), (0, "a</think>b")])
    assert pieces == [Content("<think>a</think>b")]


def test_a_stray_end_marker_is_dropped() -> None:
    for with_tokens in (True, False):
        assert read(dialect(Plain, tokens=with_tokens), "a</think>b", tools=()).content == "ab"


def test_a_call_that_begins_before_thinking_was_closed_ends_it() -> None:
    view = read(dialect(Hermes), '<think>So<tool_call>{"name": "get_time"}</tool_call>')
    assert view.reasoning == "So" and view.calls == [("get_time", {})]


def test_thinking_tokens_are_counted_apart_from_markers_and_answer() -> None:
    language = dialect(Plain)
    reply = language.splitter(thinking=True)
    stream = [(0, "\n"), (0, "One"), (0, " two"), *tokenised(language, "</think>"), (0, "three")]
    pieces = pieces_of(reply, stream)
    assert pieces == [Reasoning("One two"), Content("three")]
    assert reply.reasoning_tokens == 3


def test_thinking_cut_by_the_limit_shows_what_there_is() -> None:
    reply = dialect(Plain, tokens=False).splitter(thinking=True)
    pieces = pieces_of(reply, [(0, "Let me see"), (0, " </thi")], cut=True)
    assert pieces == [Reasoning("Let me see </thi")]


def test_pieces_come_while_the_model_thinks() -> None:
    reply = dialect(Plain, tokens=False).splitter()
    assert [reply.push(0, text) for text in ("<think>", "a ", "b <", "c")] == [
        [],
        [Reasoning("a")],
        [Reasoning(" b")],
        [Reasoning(" <c")],
    ]


def test_two_blocks_stay_apart() -> None:
    view = read(dialect(Plain), "<think>a</think>b<think>c</think>d", tools=())
    assert (view.reasoning, view.content) == ("a\n\nc", "bd")


def test_harmony_is_read_without_tools_too() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    )
    view = read(dialect(Harmony, thinking=None), text, tools=())
    assert (view.reasoning, view.content) == ("Hm.", "Yes.")


def test_only_the_end_of_a_prompt_opens_a_block() -> None:
    assert THINK.open_after("<|im_start|>assistant\n<think>\n")
    assert not THINK.open_after("What does <think> mean?<|im_start|>assistant\n")
    assert not THINK.open_after("<|im_start|>assistant\n<think>\n\n</think>\n\n")


class Tokenizer:
    """What select_thinking asks of mlx-lm's wrapper."""

    def __init__(self, *vocabulary: str, start: str | None = None, end: str | None = None) -> None:
        self.has_thinking = start is not None
        self.think_start, self.think_end = start, end
        self._vocabulary = {token: number for number, token in enumerate(vocabulary)}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary


def test_the_markers_are_those_of_the_tokenizer_then_of_the_template() -> None:
    assert select_thinking(Tokenizer(start="<|channel>thought", end="<channel|>"), "") == GEMMA
    assert select_thinking(Tokenizer("[THINK]", "[/THINK]"), "") == Thinking("[THINK]", "[/THINK]")
    assert select_thinking(Tokenizer("a"), "{{ content.split('</think>')[-1] }}") == THINK
    assert select_thinking(Tokenizer("a", "<think>"), "{{ content }}") is None


def test_the_whole_stream_keeps_its_order() -> None:
    language = dialect(Hermes)
    text = '<think>a</think>b<tool_call>{"name": "get_time"}</tool_call>c'
    kinds = [type(piece).__name__ for piece in pieces_of(splitter(language), tokenised(language, text))]
    assert kinds == ["Reasoning", "Content", "CallBegan", "CallArguments", "CallEnded", "Content"]
    assert seen(pieces_of(splitter(language), tokenised(language, text))).content == "bc"

"""Markup that does not parse is shown and flagged; what came before and after it counts."""

import pytest

from tests.unit.text.replies import TOOLS, dialect, pieces_of, read, splitter, tokenised
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallVoided, Content
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.gemma import Gemma4
from worker.text.toolcalls.glm import Glm
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes
from worker.text.toolcalls.invoke import MiniMax
from worker.text.toolcalls.kimi import KimiK2, KimiK3
from worker.text.toolcalls.llama import LlamaJson
from worker.text.toolcalls.mistral import Mistral
from worker.text.toolcalls.pythonic import BarePythonic, Pythonic
from worker.text.toolcalls.qwen_coder import QwenCoder

TIME = '<tool_call>{"name": "get_time"}</tool_call>'


def test_a_call_that_is_no_json_is_flagged_and_the_next_one_counts() -> None:
    broken = "<tool_call>get the time, please</tool_call>"
    view = read(dialect(Hermes), f"Well. {broken}\n{TIME}")
    assert (view.content, view.flagged, view.calls) == ("Well. ", broken, [("get_time", {})])


def test_a_call_that_breaks_after_its_name_is_taken_back() -> None:
    language = dialect(Hermes)
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",}}</tool_call>'
    assert pieces_of(splitter(language), tokenised(language, text)) == [
        CallBegan(0, "id-0", "get_weather"),
        CallArguments(0, '{"city": "Paris",'),
        CallVoided(0),
        Content(text, flagged=True),
    ]


def test_what_follows_a_complete_call_inside_its_markers_is_flagged_alone() -> None:
    view = read(dialect(Hermes), '<tool_call>{"name": "get_time"} and more</tool_call>')
    assert view.calls == [("get_time", {})]
    assert view.flagged.strip() == "and more</tool_call>"


def test_a_reply_that_ends_in_a_call_by_itself_shows_it() -> None:
    view = read(dialect(Hermes), '<tool_call>{"name": "get_weather", "arguments": {"ci')
    assert view.voided == 1
    assert view.flagged == '<tool_call>{"name": "get_weather", "arguments": {"ci'


def test_an_end_marker_that_is_missing_at_the_very_end_is_no_error() -> None:
    view = read(dialect(Hermes), '<tool_call>{"name": "get_time"}\n')
    assert (view.calls, view.flagged, view.content) == ([("get_time", {})], "", "")


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (QwenCoder, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis</tool_call>"),
        (QwenCoder, "<tool_call>\n<func></tool_call>"),
        (Glm, "<tool_call>What a lovely day</tool_call>"),
        (Glm, "<tool_call>get_weather<arg_key>city</arg_key>Paris</tool_call>"),
        (MiniMax, "<minimax:tool_call><invoke>x</invoke></minimax:tool_call>"),
        (KimiK2, "<|tool_calls_section_begin|>hello<|tool_calls_section_end|>"),
        (KimiK3, '<|open|>tools<|sep|><|open|>call index="1"<|sep|><|close|>tools<|sep|>'),
        (Pythonic, "<|tool_call_start|>[get_weather(city=)]<|tool_call_end|>"),
        (Pythonic, "<|tool_call_start|>call it<|tool_call_end|>"),
        (Gemma4, "<|tool_call>call:get_weather{city:}<tool_call|>"),
    ],
)
def test_broken_markup_of_a_family_is_flagged_whole(family: type[Family], text: str) -> None:
    language = dialect(family, thinking=None)
    view = read(language, text + "After.")
    assert (view.flagged, view.content, view.calls) == (text, "After.", [])
    # A cut at the token limit is not known to be broken, but nothing of it becomes a call.
    assert read(language, text[:-1], cut=True).calls == []


def test_arguments_that_are_no_object_break_a_call() -> None:
    for arguments in ("[1]", '"text"', "3", '"[1]"'):
        text = f'<tool_call>{{"name": "get_time", "arguments": {arguments}}}</tool_call>'
        view = read(dialect(Hermes), text)
        assert (view.calls, view.flagged) == ([], text)
    view = read(dialect(Mistral), "[TOOL_CALLS]get_time[ARGS][1]")
    assert view.calls == [] and view.flagged.startswith("[TOOL_CALLS]get_time[ARGS]")


def test_harmony_goes_on_after_a_broken_call() -> None:
    text = (
        "<|channel|>commentary to=functions.get_time<|message|>now?<|call|>"
        "<|start|>assistant<|channel|>final<|message|>Noon.<|return|>"
    )
    view = read(dialect(Harmony), text)
    assert (view.flagged, view.content, view.calls, view.voided) == ("now?<|call|>", "Noon.", [], 1)


def test_json_that_only_looks_like_a_call_is_content() -> None:
    for text in ('{"name": "Bob"}', '{"name": ["get_time"]}', "{", '{"type": "x"}', '{"name": "get_ti', "{}"):
        for cut in (False, True):
            view = read(dialect(LlamaJson), text, cut=cut)
            assert (view.content, view.flagged, view.calls, view.cut) == (text, "", [], False)


def test_a_forced_call_that_is_cut_before_its_name_is_no_content() -> None:
    """It was shown as text, although nothing else could have come."""
    for family, text in ((LlamaJson, '{"name": "get_ti'), (BarePythonic, "[get_tim")):
        forced = dialect(family).splitter(TOOLS, forced=True)
        assert [*forced.push_text(text), *forced.finish(cut=True)] == [CallCut(None)]


def test_a_list_that_only_looks_like_calls_is_content() -> None:
    for text in ("[1, 2]", "[get_tim", "[get_time]", "[other()]", "[ get_time ()]", "words [get_time()]"):
        view = read(dialect(BarePythonic), text)
        assert (view.content, view.flagged, view.calls) == (text, "", [])


def test_a_control_character_in_an_argument_is_escaped() -> None:
    view = read(dialect(Hermes), '<tool_call>{"name": "write", "arguments": {"path": "a\n\tb"}}</tool_call>')
    assert view.calls == [("write", {"path": "a\n\tb"})]


def test_deep_nesting_breaks_a_call_and_nothing_else() -> None:
    deep = "[" * 5000
    view = read(dialect(Hermes), f'<tool_call>{{"name": "write", "arguments": {{"lines": {deep}</tool_call>x')
    assert view.voided == 1 and view.content == "x"
    view = read(dialect(Pythonic), f"<|tool_call_start|>[write(lines={deep}<|tool_call_end|>x")
    assert view.voided == 1 and view.content == "x"


def test_without_tools_markup_is_content() -> None:
    language = dialect(Hermes, tokens=False)
    assert read(language, TIME, tools=()).content == TIME
    pieces = pieces_of(language.splitter(TOOLS, calls=False), [(0, TIME)])
    assert pieces == [Content(TIME)]


def test_ids_are_made_as_the_family_wants_them() -> None:
    ids = [read_ids(Mistral, "[TOOL_CALLS]get_time[ARGS]{}"), read_ids(Hermes, TIME)]
    assert len(ids[0]) == 9 and ids[0].isalnum()
    assert ids[1].startswith("call_")


def read_ids(family: type[Family], text: str) -> str:
    language = dialect(family)
    began = pieces_of(language.splitter(TOOLS), tokenised(language, text))[0]
    assert isinstance(began, CallBegan)
    return began.id

"""What a client may send to `POST /v1/responses`, what becomes of it, and what it is told otherwise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import PublicError
from shared.responses.asked import parse_asked
from shared.responses.items import input_items, kept_item
from shared.responses.sealed import seal, unseal
from worker.api.responses_wire import SUMMARY_LEAD, Extras, to_request
from worker.api.validation import decode
from worker.request import Message, Request, ToolCall

Json = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def parse(history: int = 0, **fields: Any) -> Request:
    body = json.dumps({"model": "m", "input": "Hi", **fields}).encode()
    return to_request(parse_asked(body), decode(body, Extras), history=history)


def refusal(body: bytes, history: int = 0) -> PublicError:
    with pytest.raises(PublicError) as raised:
        to_request(parse_asked(body), decode(body, Extras), history=history)
    assert raised.value.status in (400, 404)
    return raised.value


def test_a_text_is_the_user_s() -> None:
    assert parse().messages == (Message("user", "Hi"),)
    with_instructions = parse(instructions="Be brief.")
    assert with_instructions.messages == (Message("developer", "Be brief."), Message("user", "Hi"))


def test_items_become_turns() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    request = parse(
        input=[
            {"role": "system", "content": "S"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            thought,
            said,
            CALL,
            {**CALL, "call_id": "c2", "arguments": "not JSON"},
            OUTPUT,
            {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ]
    )
    assert request.messages == (
        Message("system", "S"),
        Message("user", "Hi"),
        Message(
            "assistant",
            "I look.",
            reasoning="Hm.",
            tool_calls=(ToolCall("f", {"a": 1}, "c1"), ToolCall("f", "not JSON", "c2")),
        ),
        Message("tool", "42", name="f", tool_call_id="c1"),
        Message("tool", "43", name="f", tool_call_id="c2"),
        Message("assistant", "Done."),
        Message("assistant", "No."),
    )


def test_reasoning_comes_back_from_whatever_the_client_kept() -> None:
    def reasoning(**fields: Any) -> str | None:
        item = {"type": "reasoning", "summary": [], **fields}
        return parse(input=[USER, item, {"role": "assistant", "content": "x"}]).messages[1].reasoning

    assert reasoning(encrypted_content=seal("Deep.")) == "Deep."
    assert reasoning(summary=[{"type": "summary_text", "text": "Short."}]) == "Short."
    assert reasoning(encrypted_content="somebody else's") is None
    # Thinking that led to nothing is dropped, as templates have no place for it.
    alone = parse(input=[USER, {"type": "reasoning", "summary": []}, USER]).messages
    assert [message.role for message in alone] == ["user", "user"]


def test_a_compaction_is_what_it_stands_for() -> None:
    request = parse(input=[{"type": "compaction", "encrypted_content": seal("They met.")}, USER])
    assert request.messages[0] == Message("developer", SUMMARY_LEAD + "They met.")
    error = refusal(json.dumps({"input": [{"type": "compaction", "encrypted_content": "x"}]}).encode())
    assert error.param == "input[0].encrypted_content"


@given(st.text(max_size=200))
@settings(max_examples=30)
def test_what_is_sealed_comes_back(text: str) -> None:
    assert unseal(seal(text)) == text


def test_tools_and_their_choice() -> None:
    request = parse(tools=[TOOL, {**TOOL, "name": "g"}], parallel_tool_calls=False)
    assert request.tools[0] == {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object"}},
    }
    assert (request.calls, request.one_call) == ("auto", True)
    named = parse(tools=[TOOL], tool_choice={"type": "function", "name": "f"})
    assert (named.calls, named.named_tool, named.one_call) == ("required", "f", True)
    assert parse(tools=[TOOL], tool_choice="none").tools == ()
    allowed = parse(
        tools=[TOOL, {**TOOL, "name": "g"}],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "g"}],
        },
    )
    assert allowed.calls == "required"
    assert [tool["function"]["name"] for tool in allowed.tools] == ["g"]


SPACES = [
    {"type": "namespace", "name": "a", "description": "", "tools": [TOOL, {**TOOL, "name": "g"}]},
    {"type": "namespace", "name": "b", "description": "", "tools": [{**TOOL, "name": "g"}]},
]


def test_namespaces_are_told_flat_and_a_name_that_two_have_with_both() -> None:
    """Codex groups the tools of its agents so."""
    called = {"type": "function_call", "call_id": "c", "name": "g", "namespace": "b", "arguments": "{}"}
    request = parse(tools=SPACES, input=[USER, called])
    assert [tool["function"]["name"] for tool in request.tools] == ["f", "a__g", "b__g"]
    assert request.messages[-1].tool_calls[0].name == "b__g"
    named = parse(tools=SPACES, tool_choice={"type": "function", "name": "f"})
    assert named.named_tool == "f"


def test_tools_of_other_servers_are_left_out_among_others() -> None:
    asked = parse_asked(json.dumps({"input": "Hi", "tools": [{"type": "web_search"}, TOOL]}).encode())
    assert [tool.told for tool in asked.calling.tools] == ["f"]
    assert asked.calling.warning is not None and "tools[0] (web_search)" in asked.calling.warning


def test_the_other_fields() -> None:
    schema = {"type": "object"}
    request = parse(
        max_output_tokens=99,
        temperature=0.5,
        seed=7,
        n=4,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        reasoning={"effort": "none"},
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        conversation="conv_1",
    )
    assert (request.max_tokens, request.sampling.temperature, request.sampling.seed) == (99, 0.5, 7)
    assert (request.n, request.logprobs, request.session) == (1, 3, "conv_1")
    assert request.max_reasoning_tokens == 0
    assert request.structure is not None and request.structure.param == "text.format.schema"
    assert parse(include=["message.output_text.logprobs"]).logprobs == 0
    assert parse().logprobs is None
    assert parse(text={"format": {"type": "json_object"}}).structure is not None
    assert parse(prompt_cache_key="k").session == "k"
    assert parse(reasoning={"effort": "high"}).template_arguments["reasoning_effort"] == "high"


WRONG: list[tuple[Json, str]] = [
    ({"input": None}, "input"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{"type": "wizardry"}]}, "input[0].type"),
    ({"input": [{"type": 3}]}, "input[0].type"),
    ({"input": [USER, {"role": "user"}]}, "input[1].content"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
    ({"input": [OUTPUT]}, "input[0].call_id"),
    ({"input": [CALL, {**OUTPUT, "call_id": ""}]}, "input[1].call_id"),
    ({"input": [CALL, {**OUTPUT, "call_id": "c" * 65}]}, "input[1].call_id"),
    ({"input": [CALL, {**OUTPUT, "output": 3}]}, "input[1].output"),
    ({"input": [{"type": "reasoning"}]}, "input[0].summary"),
    ({"input": [{"type": "reasoning", "summary": ["x"]}]}, "input[0].summary[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ({"instructions": 3}, "instructions"),
    ({"model": None}, "model"),
    ({"previous_response_id": 3}, "previous_response_id"),
    ({"previous_response_id": "a", "conversation": "b"}, "previous_response_id"),
    ({"conversation": {}}, "conversation.id"),
    ({"store": "yes"}, "store"),
    ({"background": True, "store": False}, "background"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
    ({"include": ["everything"]}, "include[0]"),
    ({"include": "reasoning.encrypted_content"}, "include"),
    ({"tools": None}, "tools"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "mystery"}]}, "tools[1].type"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": []}]}, "tools[0].tools"),
    (
        {"tools": [{"type": "namespace", "name": "a", "tools": [{**TOOL, "name": 1}]}]},
        "tools[0].tools[0].name",
    ),
    ({"tools": [TOOL, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "name": ""}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict"),
    ({"tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters"),
    ({"tools": [TOOL] * 513}, "tools"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}]}}, "tool_choice.tools[0].type"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"text": None}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "", "schema": {}}}}, "text.format.name"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"max_output_tokens": 15}, "max_output_tokens"),
    ({"max_output_tokens": "20"}, "max_output_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "some"}, "truncation"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"user": None}, "user"),
    ({"safety_identifier": "s" * 65}, "safety_identifier"),
    ({"prompt_cache_key": 1}, "prompt_cache_key"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"context_management": []}, "context_management"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: json.dumps(value)[:60])
def test_what_is_wrong_is_named(fields: Json, param: str) -> None:
    error = refusal(json.dumps({"model": "m", "input": "Hi", **fields}).encode())
    assert error.param == param, error.message


def test_nothing_to_answer() -> None:
    assert refusal(b'{"model": "m"}').code == "missing_required_parameter"


def test_places_count_without_the_history() -> None:
    body = json.dumps({"input": [USER, USER, {**OUTPUT, "call_id": "lost"}]}).encode()
    assert refusal(body, history=2).param == "input[0].call_id"
    assert refusal(body, history=3).param == "input.call_id"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(CALL)), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=60)
def test_any_input_is_taken_or_refused(value: Any) -> None:
    body = json.dumps({"input": value}).encode()
    try:
        to_request(parse_asked(body), decode(body, Extras))
    except PublicError as error:
        assert error.status in (400, 404)


def test_items_are_kept_whole() -> None:
    (text,) = map(kept_item, input_items("Hi"))
    assert text["id"].startswith("msg_") and text["status"] == "completed"
    assert text["content"] == [{"type": "input_text", "text": "Hi"}]
    said, call, output = map(kept_item, input_items([{"role": "assistant", "content": "x"}, CALL, OUTPUT]))
    assert said["content"] == [{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}]
    assert call["id"].startswith("fc_") and output["id"].startswith("fco_")
    assert kept_item({**CALL, "id": "fc_mine", "status": "incomplete"})["id"] == "fc_mine"
    # What is kept can be sent again.
    assert parse(input=[text, said, call, output]).messages[-1].content == "42"

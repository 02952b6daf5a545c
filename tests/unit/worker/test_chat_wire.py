"""What a client may send to `POST /v1/chat/completions`, and what it is told otherwise."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import PublicError
from worker.api.chat_wire import ChatAsked, to_request
from worker.api.validation import decode
from worker.request import Asked, Message, Request, ToolCall

USER = {"role": "user", "content": "Hi"}


def parse(**fields: Any) -> Request:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    return to_request(decode(body, ChatAsked))


def refusal(body: bytes) -> PublicError:
    with pytest.raises(PublicError) as raised:
        to_request(decode(body, ChatAsked))
    assert raised.value.status == 400
    return raised.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop[1]"),
        ({"stop": [str(n) for n in range(17)]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"n": 17}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": ""}]}, "functions[0].name"),
        ({"functions": [{"name": "f", "parameters": 1}]}, "functions[0].parameters"),
        ({"functions": [], "tools": []}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {}}, "function_call"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call.name"),
        ({"messages": [{"role": "function", "name": "f"}]}, "messages[0].content"),
        (
            {"messages": [USER, {"role": "tool", "content": "2", "tool_call_id": "1"}]},
            "messages[1].tool_call_id",
        ),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(json.dumps({"messages": [USER], **fields}).encode())
    assert error.param == param
    assert json.loads(error.body())["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\\udc00x"}]}',
        b'{"messages": [], "temperature": NaN}',
        b'{"messages": [], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "x"}]} trailing',
        b'{"a":' * 100_000,
        b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b', "messages": []}',
        b'{"tools": [{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b'}], "messages": []}',
    ],
    ids=range(13),
)
def test_what_is_not_json_is_a_400(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"x"'])
def test_json_of_another_shape_is_a_400(body: bytes) -> None:
    assert refusal(body).code == "invalid_type"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    ),
    st.sampled_from(sorted(ChatAsked.__struct_fields__)),
)
def test_no_value_of_any_field_does_worse_than_a_400(value: Any, field: str) -> None:
    body = {"messages": [USER], field: value}
    try:
        parse(**body)
    except PublicError as error:
        assert error.status == 400


def test_roles_names_parts_and_null_content() -> None:
    request = parse(
        messages=[
            {
                "role": "developer",
                "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "x"}],
            },
            {"role": "user", "content": "", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
            },
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ]
    )
    assert request.messages == (
        Message("developer", "Be x"),
        Message("user", "", name="ann"),
        Message("assistant", "", tool_calls=(ToolCall("f", {"a": 1}, "1"),)),
        Message("tool", "2", tool_call_id="1"),
        Message("assistant", "No."),
    )


def test_functions_are_tools_of_which_one_is_called() -> None:
    function = {"name": "f", "description": "Does", "parameters": {"type": "object"}}
    request = parse(functions=[function])
    assert request.tools == ({"type": "function", "function": function},)
    assert (request.calls, request.named_tool, request.one_call) == ("auto", None, True)
    named = parse(functions=[function], function_call={"name": "f"})
    assert (named.calls, named.named_tool) == ("required", "f")
    assert parse(functions=[function], function_call="none").tools == ()


def test_turns_of_functions_are_those_of_tools() -> None:
    """Templates know `tool` turns, and the strictest of them want ids of nine letters and digits."""
    request = parse(
        messages=[
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}},
            {"role": "function", "name": "f", "content": "2"},
        ]
    )
    call_id = request.messages[1].tool_calls[0].id
    assert call_id is not None and len(call_id) == 9 and call_id.isalnum()
    assert request.messages[1:] == (
        Message("assistant", "", tool_calls=(ToolCall("f", {"a": 1}, call_id),)),
        Message("tool", "2", name="f", tool_call_id=call_id),
    )


def test_arguments_that_are_not_json_stay_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    request = parse(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert request.messages[0].tool_calls == (ToolCall("f", '{"a":', "1"),)


def test_values_are_taken_over() -> None:
    request = parse(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=-1, max_tokens=5, stop="x", unknown=[1], user="u"
    )
    assert request.sampling == Asked(temperature=0, top_p=0.5, top_k=0, min_p=0.1, seed=-1)
    assert (request.max_tokens, request.stops) == (5, ("x",))


NEVER_NULL = {
    "user",
    "prompt_cache_options",
    "web_search_options",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
}


def test_null_is_the_same_as_absent_where_the_official_schema_has_it() -> None:
    names = set(ChatAsked.__struct_fields__) - {"messages"}
    assert parse(**dict.fromkeys(names - NEVER_NULL)) == parse()
    for name in NEVER_NULL:
        with pytest.raises(PublicError) as raised:
            parse(**{name: None})
        assert (raised.value.status, raised.value.param) == (400, name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"store": "yes"}, "store"),
        ({"user": 3}, "user"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"verbosity": "silent"}, "verbosity"),
        ({"modalities": ["smell"]}, "modalities[0]"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy"}}, "audio.format"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"functions": []}, "functions"),
    ],
)
def test_fields_that_change_nothing_are_held_against_the_schema(fields: Any, param: str) -> None:
    with pytest.raises(PublicError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_fields_that_change_nothing_change_nothing() -> None:
    extra = {
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": True,
        "user": "me",
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"},
        "audio": {"voice": "alloy", "format": "mp3"},
        "verbosity": "low",
    }
    assert parse(**extra) == parse()


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert parse(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_tools_are_left_out_when_none_may_be_called() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert parse(tools=[tool]).tools == (tool,)
    assert parse(tools=[tool], tool_choice="none").tools == ()

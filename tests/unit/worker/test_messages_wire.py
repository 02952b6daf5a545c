"""What a client may send to `POST /v1/messages`, and what it is told otherwise."""

import json
from typing import Any

import pytest

from shared.errors import Api, PublicError
from worker.api.messages_wire import CountAsked, MessagesAsked, left_out, to_request
from worker.api.validation import decode
from worker.request import Asked, Message, Request, ToolCall

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
BEGUN = {"role": "assistant", "content": "I"}
THINK = {"type": "enabled", "budget_tokens": 1024}
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


def parse(*messages: Any, **fields: Any) -> Request:
    asked = {"model": "m", "max_tokens": 9, "messages": messages or [USER], **fields}
    return to_request(decode(json.dumps(asked).encode(), MessagesAsked))


def test_tools_that_come_with_the_api_are_left_out_among_others() -> None:
    theirs = {"type": "web_search_20250305", "name": "web_search"}
    assert [tool["function"]["name"] for tool in parse(tools=[theirs, TOOL]).tools] == ["look"]
    body = {"model": "m", "messages": [USER], "tools": [theirs, TOOL]}
    told = left_out(decode(json.dumps(body).encode(), CountAsked))
    assert told is not None and "tools[0] (web_search_20250305)" in told
    with pytest.raises(PublicError) as caught:
        parse(tools=[theirs, TOOL], tool_choice={"type": "tool", "name": "web_search"})
    assert caught.value.param == "tool_choice.name"


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "text", "text": 1})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "audio"})]}, "messages[0].content[0].type"),
        ({"messages": [user(text("What is it?"), IMAGE)]}, "messages[0].content[1].type"),
        ({"messages": [user(RESULT)]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user(*CALL["content"])]}, "messages[0].content[0].type"),
        ({"messages": [USER, user(text("a")) | {"role": "system"}, CALL]}, "messages[2].content[0]"),
        ({"messages": [USER, user(RESULT) | {"role": "assistant"}, USER]}, "messages[1].content[0].type"),
        (
            {"messages": [USER, CALL, user(RESULT | {"content": [text("a"), IMAGE]})]},
            "messages[2].content[0].content[1].type",
        ),
        (
            {"messages": [user({"type": "document", "source": {"type": "base64", "data": "AA=="}})]},
            "messages[0].content[0].source.type",
        ),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        ({"stop_sequences": [str(number) for number in range(99)]}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"user_id": 3}}, "metadata.user_id"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"cache_control": "always"}, "cache_control"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": THINK, "max_tokens": 1024}, "max_tokens"),
        ({"thinking": THINK | {"display": "loud"}, "max_tokens": 2000}, "thinking.display"),
        (
            {
                "thinking": THINK,
                "max_tokens": 2000,
                "messages": [USER, {"role": "assistant", "content": "I"}],
            },
            "messages",
        ),
        ({"output_config": {"effort": "endless"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": SCHEMA}, "output_format": SCHEMA}, "output_format"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "mystery", "name": "web_search"}]}, "tools[1].type"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "hear"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PublicError) as raised:
        parse(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_the_sdk_is_told_to_go_on_without_a_thread() -> None:
    """Its tool runner asks for one, and would go on by sending results without the calls before them."""
    with pytest.raises(PublicError) as raised:
        parse(thread={"type": "create"})
    told = json.loads(raised.value.body(Api.ANTHROPIC))["error"]["details"]
    assert told["error_code"] == "thread_unsupported_request"


def test_blocks_are_read_as_the_text_they_are() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}}
    found = {"type": "search_result", "title": "S", "source": "here", "content": [text("R")]}
    request = parse(user(text("a"), document, found), system=[text("s"), text("t")])
    assert request.messages == (Message("system", "s\n\nt"), Message("user", "a\n\nT\nD\n\nS\nhere\nR"))


def test_a_conversation_with_calls_keeps_thinking_calls_and_their_results_together() -> None:
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "anything"},
        {"type": "redacted_thinking", "data": "x"},
        text("Wait."),
        *CALL["content"],
    ]
    results = user(text("and?"), RESULT, {**RESULT, "content": [text("no")], "is_error": True})
    request = parse(USER, {"role": "assistant", "content": said}, results, tools=[TOOL])
    call = ToolCall("look", {}, "toolu_1")
    assert request.messages[1:] == (
        Message("assistant", "Wait.", tool_calls=(call,), reasoning="hm"),
        Message("tool", "seen", name="look", tool_call_id="toolu_1"),
        Message("tool", "Error: no", name="look", tool_call_id="toolu_1"),
        Message("user", "and?"),
    )
    assert request.tools == (
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    )


def test_system_messages_may_come_in_the_middle() -> None:
    middle = {"role": "system", "content": [text("be brief")]}
    request = parse(USER, middle, USER, system="s")
    assert [message.role for message in request.messages] == ["system", "user", "system", "user"]


def test_the_line_by_which_an_agent_counts_is_left_out() -> None:
    """It differs in every request, so no prompt would ever be found in the cache."""
    request = parse(system=[text("x-anthropic-billing-header: cc_version=2; cch=0f1e2;"), text("s")])
    assert request.messages[0] == Message("system", "s")


def test_an_answer_goes_on_from_what_the_assistant_said_last() -> None:
    request = parse(USER, {"role": "assistant", "content": [text("The answer is (")]})
    assert (request.prefill, len(request.messages)) == ("The answer is (", 1)
    assert request.template_arguments["enable_thinking"] is False


def test_how_tokens_are_chosen() -> None:
    request = parse(temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["a", "b", "a"], max_tokens=77)
    assert request.sampling == Asked(temperature=0.5, top_p=0.9, top_k=3)
    assert (request.stops, request.max_tokens) == (("a", "b"), 77)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (1, "auto", None, False)),
        ({"type": "auto", "disable_parallel_tool_use": True}, (1, "auto", None, True)),
        ({"type": "any"}, (1, "required", None, False)),
        ({"type": "any", "disable_parallel_tool_use": True}, (1, "required", None, True)),
        ({"type": "tool", "name": "look"}, (1, "required", "look", True)),
        ({"type": "none"}, (0, "auto", None, False)),
    ],
)
def test_tool_choice(choice: Any, expected: tuple[int, str, str | None, bool]) -> None:
    request = parse(tools=[TOOL], tool_choice=choice)
    assert (len(request.tools), request.calls, request.named_tool, request.one_call) == expected


@pytest.mark.parametrize(
    ("thinking", "budget", "enabled"),
    [
        (None, None, None),
        ({"type": "disabled"}, 0, False),
        ({"type": "adaptive"}, None, True),
        (THINK, 1024, True),
    ],
)
def test_thinking(thinking: Any, budget: int | None, enabled: bool | None) -> None:
    request = parse(thinking=thinking, max_tokens=2000)
    assert request.max_reasoning_tokens == budget
    assert request.template_arguments.get("enable_thinking") is enabled


def test_formats_and_effort() -> None:
    request = parse(output_config={"effort": "low", "format": SCHEMA})
    assert request.structure is not None
    assert request.structure.strict and request.structure.param == "output_config.format.schema"
    assert request.template_arguments == {"reasoning_effort": "low"}


def test_what_is_not_known_changes_nothing() -> None:
    extra = {
        "service_tier": "auto",
        "container": None,
        "betas": ["x"],
        "speed": "fast",
        "inference_geo": "eu",
    }
    marked = user(text("Hi") | {"citations": None})
    assert parse(marked, **extra) == parse(user(text("Hi")))


MARKED = {**text("Hi"), "cache_control": {"type": "ephemeral"}}
NESTED = {**RESULT, "content": [MARKED]}


@pytest.mark.parametrize(
    ("messages", "fields", "turns"),
    [
        ([USER], {}, None),
        ([USER], {"cache_control": {"type": "ephemeral"}}, 1),
        ([user(MARKED)], {}, 1),
        ([user(MARKED), CALL, user(RESULT, text("Go on."))], {}, 1),
        ([USER, CALL, user(NESTED), CALL, USER], {}, 3),
        ([USER], {"system": [MARKED]}, 1),
        ([USER], {"system": "Be brief.", "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}, 1),
        ([USER], {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}, 0),
        ([USER, BEGUN | {"content": [MARKED]}], {}, 1),
    ],
)
def test_what_cache_control_marks(messages: list[Any], fields: dict[str, Any], turns: int | None) -> None:
    assert parse(*messages, **fields).marked_turns == turns

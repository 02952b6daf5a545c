"""Each field of each body, in each wrong shape, through the front: 400 that names it."""

from typing import Any

import pytest

from shared.responses.asked import ResponsesAsked
from shared.responses.items import FunctionCall, FunctionCallOutput, MessageItem
from shared.responses.tools import FunctionTool
from supervisor.responses.conversing import CreateAsked, ItemsAsked, UpdateAsked
from tests.fixtures.harness import Json, Service
from tests.fixtures.wrong_fields import wrong_bodies

ASKED: Json = {"model": "a", "input": "x"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def refused(service: Service, path: str, body: Json) -> str | None:
    """The field that is named."""
    answer = service.client.post(path, json=body)
    assert answer.status_code == 400, (body, answer.text)
    error: Json = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    param: str | None = error["param"]
    return param


@pytest.mark.parametrize(
    ("path", "kind", "base", "within"),
    [
        ("/v1/responses", ResponsesAsked, ASKED, ()),
        ("/v1/responses", MessageItem, {"model": "a", "input": [{"type": "message"}]}, ("input", 0)),
        ("/v1/responses", FunctionTool, ASKED | {"tools": [{"type": "function"}]}, ("tools", 0)),
        ("/v1/conversations", CreateAsked, {}, ()),
        ("/v1/conversations", FunctionCall, {"items": [{"type": "function_call"}]}, ("items", 0)),
        ("/v1/conversations/conv_x", UpdateAsked, {}, ()),
        ("/v1/conversations/conv_x/items", ItemsAsked, {}, ()),
        (
            "/v1/conversations/conv_x/items",
            FunctionCallOutput,
            {"items": [{"type": "function_call_output"}]},
            ("items", 0),
        ),
    ],
)
def test_whatever_is_of_the_wrong_shape_is_named(
    service: Service, path: str, kind: Any, base: Json, within: tuple[str | int, ...]
) -> None:
    seen = 0
    for param, body in wrong_bodies(kind, base, *within):
        seen += 1

        assert refused(service, path, body) == param, body
    assert seen > 5
    assert service.engine()["workers"] == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"safety_identifier": "x" * 65}, "safety_identifier"),
        ({"include": ["everything"]}, "include[0]"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}]}},
            "tool_choice.tools[0].type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": 7}]}, "input[0].type"),
        ({"input": [CALL | {"type": "function_call", "arguments": {}}]}, "input[0].arguments"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_ranges_and_combinations(service: Service, path: str, fields: Json, param: str) -> None:
    assert refused(service, path, ASKED | fields) == param

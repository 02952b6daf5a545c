"""Each field of each body, in each wrong shape, through the front: 400 that names it."""

from typing import Any

import pytest

from shared.responses.asked import ResponsesAsked
from shared.responses.items import FunctionCall, FunctionCallOutput, MessageItem
from shared.responses.tools import FunctionTool
from supervisor.relay import FORWARDED
from supervisor.responses.conversing import CreateAsked, ItemsAsked, UpdateAsked
from supervisor.responses.paths import RESPONDED
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


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        *(("GET", path.decode(), "POST") for path in sorted(FORWARDED)),
        ("PUT", "/v1/responses/resp_x", "GET, DELETE"),
        ("DELETE", "/v1/responses/compact", "POST"),
        ("DELETE", "/v1/responses/input_tokens", "POST"),
        ("DELETE", "/v1/responses/resp_x/cancel", "POST"),
        ("POST", "/v1/responses/resp_x/input_items", "GET"),
        ("PUT", "/v1/conversations", "POST"),
        ("PUT", "/v1/conversations/conv_x", "GET, POST, DELETE"),
        ("DELETE", "/v1/conversations/conv_x/items", "GET, POST"),
        ("POST", "/v1/conversations/conv_x/items/msg_x", "GET, DELETE"),
    ],
)
def test_other_methods_are_told_the_right_ones(service: Service, method: str, path: str, allow: str) -> None:
    answer = service.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    told = answer.json()
    assert told["error"]["type"] == "invalid_request_error"
    assert ("type" in told) is path.startswith("/v1/messages")


@pytest.mark.parametrize(
    "path",
    sorted(path.decode() for path in FORWARDED | RESPONDED),
    ids=lambda path: path.removeprefix("/v1/"),
)
def test_a_model_that_is_not_there_is_a_404(service: Service, path: str) -> None:
    answer = service.client.post(path, json={"model": "nobody", "messages": [], "input": "x"})
    told = answer.json()
    assert (answer.status_code, told["error"]["code"]) == (404, "model_not_found")
    if path.startswith("/v1/messages"):
        assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
    else:
        assert told["error"]["type"] == "invalid_request_error"

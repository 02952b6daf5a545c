"""Tool calls through a real worker, with a random model that a grammar makes call."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker.serving import Json, Worker, chat_body, serving
from tests.fixtures.tiny import Tiny
from tests.unit.constraints.validate import problem

SPEAKS = Tiny("qwen3", thinking=True, speaks="all")
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 10},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WORDY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 150, "maxLength": 160}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Arguments that take so long to say that they can't come in one event, however busy the machine is."""


def function(name: str, parameters: Json | None = None) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters or PARAMETERS}}


WEATHER = function("get_weather")
TIME = function("get_time", {"type": "object", "properties": {}, "additionalProperties": False})
NAMED: Json = {"type": "function", "function": {"name": "get_weather"}}


async def collected(stream: AsyncIterator[Json | str]) -> list[Json]:
    return [event["choices"][0] async for event in stream if isinstance(event, dict)]


def gathered(choices: list[Json]) -> list[Json]:
    """The calls of a stream as a client puts them together."""
    calls: list[Json] = []
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(calls) and delta["type"] == "function"
                assert delta["function"]["name"] and delta["function"]["arguments"] == ""
                calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
            else:
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return calls


async def test_a_named_function_is_called_with_valid_arguments_streamed_and_not() -> None:
    tools = [function("get_weather", WORDY), TIME]
    fields: Json = {"tools": tools, "tool_choice": NAMED, "max_tokens": 300}
    async with serving(SPEAKS) as worker:
        (choice,) = (await worker.answer(**fields))["choices"]
        async with worker.stream(**fields) as stream:
            choices = await collected(stream)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None and "reasoning_content" not in message
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"]["name"] == "get_weather"
    assert problem(json.loads(call["function"]["arguments"]), WORDY) is None
    (streamed,) = gathered(choices)
    assert (streamed["name"], streamed["arguments"]) == ("get_weather", call["function"]["arguments"])
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not any(choice["delta"].get("content") for choice in choices)
    pieces = [choice for choice in choices if choice["delta"].get("tool_calls")]
    assert len(pieces) > 2, "arguments come as they are said"


async def test_a_required_call_is_of_one_of_the_tools() -> None:
    fields: Json = {"tools": [WEATHER, TIME], "tool_choice": "required", "temperature": 1.0}
    async with serving(SPEAKS) as worker:
        body = await worker.answer(
            **fields, n=4, max_tokens=400, max_reasoning_tokens=20, parallel_tool_calls=False
        )
    for choice in body["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        schema = {"get_weather": PARAMETERS, "get_time": {}}[call["function"]["name"]]
        assert problem(json.loads(call["function"]["arguments"]), schema) is None


async def test_only_allowed_tools_are_called() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    async with serving(SPEAKS) as worker:
        (choice,) = (
            await worker.answer(
                tools=[WEATHER, TIME],
                tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
                parallel_tool_calls=False,
                max_tokens=100,
            )
        )["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_time"]


async def test_a_call_that_the_token_limit_cuts_is_length() -> None:
    """Fault 40."""
    fields: Json = {"tools": [WEATHER], "tool_choice": NAMED, "max_tokens": 60}
    async with serving(SPEAKS) as worker:
        (choice,) = (await worker.answer(**fields))["choices"]
        async with worker.stream(**fields) as stream:
            choices = await collected(stream)
    assert choice["finish_reason"] == "length" == choices[-1]["finish_reason"]
    assert not choice["message"]["content"] and "malformed_tool_call" not in choice["message"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    (streamed,) = gathered(choices)
    assert streamed["arguments"] == call["function"]["arguments"]
    assert streamed["arguments"].startswith('{"city')


async def test_a_call_that_is_cut_in_its_name_shows_nothing() -> None:
    async with serving(SPEAKS) as worker:
        (choice,) = (await worker.answer(tools=[WEATHER], tool_choice=NAMED, max_tokens=12))["choices"]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"] and "tool_calls" not in choice["message"]


async def test_calls_of_a_model_that_knows_no_tools_are_told_and_read_too() -> None:
    fields: Json = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    async with serving(Tiny("llama", speaks="all")) as worker:
        body = await worker.answer(**fields, max_tokens=300)
        bare = await worker.answer(max_tokens=5)
    (choice,) = body["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert problem(json.loads(call["function"]["arguments"]), PARAMETERS) is None
    assert body["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 100


async def test_with_tools_a_structured_answer_or_a_call() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    fields: Json = {
        "tools": [TIME],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    async with serving(Tiny("qwen3", speaks="all")) as worker:
        body = await worker.answer(**fields, temperature=1.0, n=4, max_tokens=300)
    for choice in body["choices"]:
        if choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"
        else:
            assert problem(json.loads(choice["message"]["content"]), schema) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [function("f", {"type": "strin"})], "tool_choice": "required"},
            "tools[0].function.parameters.type",
        ),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
async def test_what_can_not_be_called_is_refused_with_the_field(fields: Json, param: str) -> None:
    async with serving(SPEAKS) as worker:
        response = await worker.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.slow
async def test_a_real_model_calls_a_tool_and_answers_with_its_result(starter: Path) -> None:
    schema: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = function("get_weather", schema)
    tool["function"]["description"] = "Get the current weather of a city."
    question = {"role": "user", "content": "What is the weather in Paris?"}
    choice = {"type": "function", "function": {"name": "get_weather"}}
    async with serving(directory=starter) as worker:
        first = await post(worker, messages=[question], tools=[tool], tool_choice=choice, max_tokens=40)
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert "paris" in json.loads(call["function"]["arguments"])["city"].lower()
        result = {"role": "tool", "tool_call_id": call["id"], "content": "It is sunny, 23 degrees."}
        second = await post(
            worker,
            messages=[question, message, result],
            tools=[tool],
            max_tokens=12,
        )
    assert second["choices"][0]["message"]["content"] or second["choices"][0]["message"].get("tool_calls")


async def post(worker: Worker, **fields: Any) -> Json:
    response = await worker.client.post("/v1/chat/completions", json=chat_body(**fields))
    assert response.status_code == 200, response.text
    body: Json = response.json()
    return body

"""`POST /v1/responses` on a real worker, held against the official schema."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.responses.answer import CONTEXT_HEADER
from tests.e2e.worker.serving import ENDLESS, Json, Worker, serving
from tests.fixtures.responses import check_events, check_response, parse_stream
from tests.fixtures.tiny import Tiny
from tests.unit.constraints.validate import problem

SPEAKS = Tiny("qwen3", thinking=True, speaks="all")
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1, "maxLength": 10}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Json = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
NAMED: Json = {"type": "function", "name": "get_weather"}


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with serving(SPEAKS) as worker:
        yield worker


async def respond(worker: Worker, path: str = "", **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "input": "Hello", "max_output_tokens": 40, "temperature": 0, **fields}
    return await worker.client.post(f"/v1/responses{path}", json=body)


async def whole(worker: Worker, **fields: Any) -> Json:
    response = await respond(worker, **fields)
    assert response.status_code == 200, response.text
    check_response(response.json())
    body: Json = response.json()
    return body


async def streamed(worker: Worker, **fields: Any) -> Json:
    response = await respond(worker, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    return check_events(parse_stream(response.content))


def told(response: Json) -> list[Json]:
    """The output without what is different each time."""
    return [{name: value for name, value in item.items() if "id" not in name} for item in response["output"]]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "max_output_tokens": 400,
        },
        {
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
            "max_output_tokens": 400,
        },
    ],
    ids=["text", "logprobs", "call", "structure"],
)
async def test_a_stream_says_what_the_whole_answer_says(worker: Worker, fields: Json) -> None:
    # Thinking of a random model ends when it pleases.
    fields = {**fields, "max_reasoning_tokens": 8}
    plain, stream = await whole(worker, **fields), await streamed(worker, **fields)
    assert told(plain) == told(stream)
    assert plain["usage"]["output_tokens"] == stream["usage"]["output_tokens"] > 0
    if "tools" in fields:
        call = plain["output"][-1]
        assert call["type"] == "function_call"
        assert problem(json.loads(call["arguments"]), SCHEMA) is None
    if "text" in fields:
        assert problem(json.loads(plain["output"][-1]["content"][0]["text"]), SCHEMA) is None


async def test_the_conversation_is_the_same_as_in_chat(worker: Worker) -> None:
    """One prompt, whichever way it is told."""
    turns = [("user", "Hello"), ("assistant", "Hi."), ("user", "And?")]
    items = [{"role": role, "content": text} for role, text in turns]
    counted = await respond(worker, "/input_tokens", input=items, instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, *items]
    chat = await worker.client.post(
        "/v1/chat/completions", json={"messages": messages, "max_tokens": 1, "temperature": 0}
    )
    usage = (await whole(worker, input=items, instructions="Be brief."))["usage"]
    tokens = chat.json()["usage"]["prompt_tokens"]
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": tokens,
        "context_window": 2048,
    }
    assert usage["input_tokens"] == tokens
    assert usage["input_tokens_details"]["cached_tokens"] > 0


async def test_a_prompt_that_does_not_fit_is_counted_and_refused(worker: Worker) -> None:
    long = "word " * 600
    counted = (await respond(worker, "/input_tokens", input=long)).json()
    assert counted["input_tokens"] > counted["context_window"] == 2048
    refused = await respond(worker, input=long)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "2048" in error["message"] and "truncation" in error["message"]


async def test_the_supervisor_names_the_response(worker: Worker) -> None:
    context = {"id": "resp_mine", "created_at": 5, "sequence_number": 2, "history": 1}
    body = {
        "input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "x"}],
        "stream": True,
    }
    headers = {CONTEXT_HEADER.decode(): json.dumps(context)}
    refused = await worker.client.post("/v1/responses", json=body, headers=headers)
    assert refused.json()["error"]["param"] == "input[0].id"
    body = {"input": "Hello", "stream": True, "max_output_tokens": 16, "background": True}
    response = await worker.client.post("/v1/responses", json=body, headers=headers)
    answer = check_events(parse_stream(response.content), first=2)
    assert (answer["id"], answer["created_at"], answer["background"]) == ("resp_mine", 5, True)


async def test_an_engine_that_fails_in_the_middle_is_told_in_the_stream(worker: Worker) -> None:
    body = {"input": "Hello", "stream": True, "ignore_eos": True, "max_output_tokens": ENDLESS}
    async with worker.client.stream("POST", "/v1/responses", json=body) as response:
        data = b""
        async for chunk in response.aiter_bytes():
            if not data:
                assert worker.app is not None and worker.app._completions is not None
                (reply,) = worker.app._completions._replies.values()
                assert worker.app._completions.cancel(reply.id)
            data += chunk
    answer = check_events(parse_stream(data))
    assert answer["status"] == "failed" and answer["error"]["code"] == "server_error"


async def test_only_post(worker: Worker) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        response = await worker.client.get(path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.slow
async def test_the_starter_model_answers(starter: Path) -> None:
    async with serving(directory=starter) as worker:
        answer = await whole(worker, input="What is the capital of France?", max_output_tokens=32)
    assert "Paris" in answer["output"][0]["content"][0]["text"]

"""Anthropic's SDK against a running supervisor: `anthropic_sdk.py URL MODEL`."""

import asyncio
import json
import sys

import anthropic
import httpx2 as httpx
from pydantic import BaseModel

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
ASKED = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 40}
GREEDY = {"extra_body": {"temperature": 0}}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"celsius": {"type": "boolean"}},
        "required": ["celsius"],
        "additionalProperties": False,
    },
}


class Answer(BaseModel):
    yes: bool


def raw_text() -> str:
    """The deltas of a stream as they are on the wire."""
    body = {**ASKED, "temperature": 0, "stream": True}
    text = ""
    with httpx.stream("POST", f"{url}/v1/messages?beta=true", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                text += json.loads(line[6:]).get("delta", {}).get("text", "")
    return text


def models() -> None:
    listed = client.models.list(limit=2)
    assert listed.data and all(entry.type == "model" for entry in listed.data)
    assert model in [entry.id for entry in client.models.list()]
    assert client.models.retrieve(model).display_name
    try:
        client.models.retrieve("gone")
        raise AssertionError("an unknown model was found")
    except anthropic.NotFoundError as error:
        assert error.request_id and error.body["error"]["type"] == "not_found_error"


def messages() -> None:
    whole = client.messages.create(**ASKED, **GREEDY)
    (block,) = whole.content
    assert whole._request_id
    with client.messages.stream(**ASKED, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert block.text == text == final.content[0].text == raw_text()
    assert final.stop_reason == whole.stop_reason
    counted = client.messages.count_tokens(model=model, messages=ASKED["messages"])
    used = whole.usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens
    alias = client.messages.create(**{**ASKED, "model": "claude-anything"})
    assert alias.model == "talker"
    events = list(client.messages.create(**ASKED, **GREEDY, stream=True))
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == text
    answer = client.messages.with_raw_response.create(**ASKED, **GREEDY)
    assert answer.parse().content[0].text == text and answer.headers["request-id"]
    stopped = client.messages.create(**ASKED, **GREEDY, stop_sequences=[text[2]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[2])


def beta() -> None:
    whole = client.beta.messages.create(**ASKED, **GREEDY)
    with client.beta.messages.stream(**ASKED, **GREEDY) as stream:
        assert stream.get_final_message().content[0].text == whole.content[0].text
    assert client.beta.messages.count_tokens(model=model, messages=ASKED["messages"]).input_tokens > 1
    parsed = client.beta.messages.parse(**{**ASKED, "max_tokens": 1000}, output_format=Answer)
    assert isinstance(parsed.parsed_output, Answer)

    @anthropic.beta_tool
    def get_weather(celsius: bool) -> str:
        """The weather of a city."""
        return "rain"

    runner = client.beta.messages.tool_runner(
        **{**ASKED, "max_tokens": 1000},
        tools=[get_weather],
        tool_choice={"type": "tool", "name": "get_weather"},
        max_iterations=2,
    )
    first, second = runner
    assert first.content[-1].type == second.content[-1].type == "tool_use"


def thinking() -> None:
    asked = {**ASKED, "max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert client.messages.create(**asked).content
    assert client.messages.count_tokens(
        model=model, messages=ASKED["messages"], system="Be brief.", tools=[TOOL], thinking=asked["thinking"]
    ).input_tokens
    assert client.messages.create(**ASKED, thinking={"type": "disabled"}).content


def asynchronous() -> None:
    async def both() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other:
            whole = await other.messages.create(**ASKED, **GREEDY)
            async with other.messages.stream(**ASKED, **GREEDY) as stream:
                pieces = [piece async for piece in stream.text_stream]
            assert "".join(pieces) == whole.content[0].text == raw_text()

    asyncio.run(both())


def tools() -> None:
    asked = {
        **ASKED,
        "max_tokens": 1000,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    called = client.messages.create(**asked)
    call = called.content[-1]
    assert called.stop_reason == "tool_use" and isinstance(call.input["celsius"], bool)
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().content[-1].name == "get_weather"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}
    history = [*ASKED["messages"], {"role": "assistant", "content": called.content}, result]
    assert client.messages.create(**{**ASKED, "messages": history, "tools": [TOOL]}).role == "assistant"


def structured() -> None:
    parsed = client.messages.parse(**{**ASKED, "max_tokens": 1000}, output_format=Answer)
    assert isinstance(parsed.parsed_output, Answer)


def mistakes() -> None:
    try:
        client.messages.create(**{**ASKED, "max_tokens": -1})
        raise AssertionError("a wrong limit was taken")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["param"] == "max_tokens" and error.request_id
    try:
        client.messages.create(**{**ASKED, "model": "gone"})
        raise AssertionError("an unknown model answered")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"


for check in (models, messages, tools, structured, beta, thinking, asynchronous, mistakes):
    check()
    print(check.__name__, "ok")

"""OpenAI's SDK against a running supervisor: `openai_sdk.py URL MODEL`."""

import asyncio
import json
import sys
import time

import httpx2 as httpx
import openai
from pydantic import BaseModel

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
ASKED = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 40}
GREEDY = {"temperature": 0}
# An answer that ends by itself: the SDK's stream has no final response of one that is cut.
SAID = {"model": model, "input": "What is the capital of France?", "max_output_tokens": 60, **GREEDY}
SCHEMA = {
    "type": "object",
    "properties": {"celsius": {"type": "boolean"}},
    "required": ["celsius"],
    "additionalProperties": False,
}


class Answer(BaseModel):
    yes: bool


class Weather(BaseModel):
    """The weather of a city."""

    celsius: bool


def raw_events(path: str, body: dict) -> list[dict]:
    """The events of a stream as they are on the wire."""
    events = []
    with httpx.stream("POST", f"{url}/v1/{path}", json={**body, "stream": True}, timeout=600) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
    return events


def raw_text() -> str:
    """The text of a chat."""
    events = raw_events("chat/completions", {**ASKED, **GREEDY})
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def models() -> None:
    names = [entry.id for entry in client.models.list()]
    assert model in names
    assert client.models.retrieve(model).id == model
    try:
        client.models.retrieve("gone")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found" and error.request_id


def chat() -> None:
    whole = client.chat.completions.create(**ASKED, **GREEDY, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert whole._request_id and whole.usage.completion_tokens
    assert "".join(entry.token for entry in whole.choices[0].logprobs.content)
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(**ASKED, **GREEDY, stream=True, stream_options=usage))
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == text == raw_text()
    with client.chat.completions.stream(**ASKED, **GREEDY) as stream:
        for _ in stream:
            pass
        assert stream.current_completion_snapshot.choices[0].message.content == text


def tools() -> None:
    tool = openai.pydantic_function_tool(Weather)
    choice = {"type": "function", "function": {"name": "Weather"}}
    parsed = client.chat.completions.parse(**{**ASKED, "max_tokens": 1000}, tools=[tool], tool_choice=choice)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(
        **{**ASKED, "max_tokens": 1000}, tools=[tool], tool_choice=choice
    ) as stream:
        (again,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(again.function.parsed_arguments, Weather)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    history = [*ASKED["messages"], parsed.choices[0].message, answer]
    assert client.chat.completions.create(**{**ASKED, "messages": history}, tools=[tool]).choices


def structured() -> None:
    parsed = client.chat.completions.parse(**{**ASKED, "max_tokens": 1000}, response_format=Answer)
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def completions() -> None:
    whole = client.completions.create(
        model=model, prompt="One, two,", max_tokens=8, temperature=0, logprobs=1
    )
    stream = client.completions.create(
        model=model, prompt="One, two,", max_tokens=8, temperature=0, stream=True
    )
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream)


def embeddings() -> None:
    made = client.embeddings.create(model="vectors", input=["a", "b"])
    assert len(made.data) == 2 and len(made.data[0].embedding) > 8
    plain = client.embeddings.create(model="vectors", input=["a", "b"], encoding_format="float")
    assert [round(x, 6) for x in plain.data[1].embedding] == [round(x, 6) for x in made.data[1].embedding]


def decisions() -> None:
    questions = [
        {"type": "predicate", "instructions": "It is about colours."},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "red"}, {"value": "blue"}]},
        {"type": "score", "instructions": "How bright?", "levels": [{"label": "dark"}, {"label": "bright"}]},
    ]
    made = client.decisions.create(model=model, input="Red and blue.", questions=questions)
    assert [answer.type for answer in made.answers] == ["predicate", "choice", "score"]


def responses() -> None:
    whole = client.responses.create(**SAID)
    text = whole.output_text
    assert whole.status in ("completed", "incomplete") and whole.usage.output_tokens
    deltas = [e["delta"] for e in raw_events("responses", SAID) if e["type"] == "response.output_text.delta"]
    with client.responses.stream(**SAID) as stream:
        told = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == text
    events = list(client.responses.create(**SAID, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(told) == "".join(deltas) == text == events[-1].response.output_text
    assert client.responses.retrieve(whole.id).output_text == text
    (item,) = client.responses.input_items.list(whole.id)
    assert item.content[0].text == SAID["input"]
    counted = client.responses.input_tokens.count(model=model, input=SAID["input"])
    assert counted.input_tokens == whole.usage.input_tokens
    more = client.responses.create(**{**SAID, "input": "And more?"}, previous_response_id=whole.id)
    assert more.previous_response_id == whole.id and more.usage.input_tokens > whole.usage.input_tokens
    parsed = client.responses.parse(**{**SAID, "max_output_tokens": 1000}, text_format=Answer)
    assert isinstance(parsed.output_parsed, Answer)
    compacted = client.responses.compact(
        model=model, input=[{"role": "user", "content": "We met on Monday."}]
    )
    assert compacted.output[-1].type == "compaction"
    client.responses.delete(whole.id)
    try:
        client.responses.retrieve(whole.id)
        raise AssertionError("a deleted response was found")
    except openai.NotFoundError as error:
        assert error.code == "response_not_found"


def responses_tools() -> None:
    tool = {"type": "function", "name": "Weather", "strict": True, "parameters": SCHEMA}
    asked = {**SAID, "max_output_tokens": 1000, "tools": [tool], "parallel_tool_calls": False}
    called = client.responses.create(**asked, tool_choice={"type": "function", "name": "Weather"})
    call = called.output[-1]
    assert isinstance(json.loads(call.arguments)["celsius"], bool)
    with client.responses.stream(**asked, tool_choice="required") as stream:
        assert stream.get_final_response().output[-1].type == "function_call"
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = client.responses.create(**{**SAID, "input": [answer]}, previous_response_id=called.id)
    assert after.output_text


def background() -> None:
    begun = client.responses.create(**SAID, background=True)
    while (now := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        time.sleep(0.05)
    assert now.output_text and now.background
    stream = client.responses.create(**SAID, background=True, stream=True)
    first = next(iter(stream))
    stream.close()
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].response.output_text == now.output_text
    endless = {**SAID, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
    cancelled = client.responses.create(**endless, background=True)
    assert client.responses.cancel(cancelled.id).status == "cancelled"


def conversations() -> None:
    one = client.conversations.create(metadata={"about": "colours"})
    said = client.responses.create(**SAID, conversation=one.id)
    assert said.conversation.id == one.id
    listed = [item.type for item in client.conversations.items.list(one.id, order="asc")]
    assert listed == ["message", "message"]
    added = client.conversations.items.create(one.id, items=[{"role": "user", "content": "Thanks."}])
    (item,) = added.data
    assert client.conversations.items.retrieve(item.id, conversation_id=one.id).content[0].text == "Thanks."
    client.conversations.items.delete(item.id, conversation_id=one.id)
    assert client.conversations.update(one.id, metadata={"about": "none"}).metadata == {"about": "none"}
    assert client.conversations.retrieve(one.id).id == one.id
    assert client.conversations.delete(one.id).deleted


def websocket() -> None:
    with client.responses.connect() as connection:
        before = None
        for _ in range(2):
            connection.response.create(**SAID, store=False, previous_response_id=before)
            for event in connection:
                if event.type in ("response.completed", "response.incomplete", "error"):
                    break
            before = event.response.id
            assert event.response.output_text


def asynchronous() -> None:
    async def both() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as other:
            pieces = []
            async for chunk in await other.chat.completions.create(**ASKED, **GREEDY, stream=True):
                pieces.append(chunk.choices[0].delta.content or "")
            assert "".join(pieces) == raw_text()
            async with other.responses.stream(**SAID) as stream:
                final = await stream.get_final_response()
            assert final.output_text == (await other.responses.create(**SAID)).output_text

    asyncio.run(both())


def mistakes() -> None:
    try:
        client.chat.completions.create(**{**ASKED, "temperature": 9})
        raise AssertionError("a wrong temperature was taken")
    except openai.BadRequestError as error:
        assert error.param == "temperature"


for check in (
    models,
    chat,
    tools,
    structured,
    completions,
    embeddings,
    decisions,
    responses,
    responses_tools,
    background,
    conversations,
    websocket,
    asynchronous,
    mistakes,
):
    check()
    print(check.__name__, "ok")

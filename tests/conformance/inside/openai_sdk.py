"""OpenAI's SDK against a running supervisor: `openai_sdk.py URL MODEL`."""

import json
import sys

import httpx2 as httpx
import openai
from pydantic import BaseModel

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
ASKED = {"model": model, "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 40}
GREEDY = {"temperature": 0}


class Answer(BaseModel):
    yes: bool


class Weather(BaseModel):
    """The weather of a city."""

    celsius: bool


def raw_text() -> str:
    """The deltas of a stream as they are on the wire."""
    body = {**ASKED, **GREEDY, "stream": True}
    text = ""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return text


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
    parsed = client.chat.completions.parse(**{**ASKED, "max_tokens": 200}, tools=[tool], tool_choice=choice)
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    history = [*ASKED["messages"], parsed.choices[0].message, answer]
    assert client.chat.completions.create(**{**ASKED, "messages": history}, tools=[tool]).choices


def structured() -> None:
    parsed = client.chat.completions.parse(**{**ASKED, "max_tokens": 200}, response_format=Answer)
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


def decisions() -> None:
    question = {"type": "predicate", "instructions": "It is about colours."}
    made = client.decisions.create(model=model, input="Red and blue.", questions=[question])
    assert made


def mistakes() -> None:
    try:
        client.chat.completions.create(**{**ASKED, "temperature": 9})
        raise AssertionError("a wrong temperature was taken")
    except openai.BadRequestError as error:
        assert error.param == "temperature"


for check in (models, chat, tools, structured, completions, embeddings, decisions, mistakes):
    check()
    print(check.__name__, "ok")

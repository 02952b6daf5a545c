"""Thinking apart from the answer, from models whose templates open a block or leave it to the model."""

import json
from pathlib import Path

import pytest

from tests.e2e.worker.serving import Json, content, serving
from tests.fixtures.tiny import Tiny
from tests.unit.constraints.validate import problem

SCHEMA: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
STRUCTURED: Json = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {**SCHEMA, "additionalProperties": False}},
}


async def test_what_follows_an_open_block_is_reasoning_streamed_and_not(thinker: Path) -> None:
    async with serving(directory=thinker) as worker:
        body = await worker.answer()
        async with worker.stream(stream_options={"include_usage": True}) as stream:
            events = [event async for event in stream if isinstance(event, dict)]
    (choice,) = body["choices"]
    message = choice["message"]
    assert len(message["reasoning_content"]) == 16 and message["content"] == ""
    assert message["reasoning"] == message["reasoning_content"]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 16}
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    streamed = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    assert "".join(streamed) == message["reasoning_content"]
    assert len(streamed) > 8, "reasoning comes as it is thought"
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    assert content(events) == ""  # type: ignore[arg-type]
    details = events[-1]["usage"]["completion_tokens_details"]
    assert details == body["usage"]["completion_tokens_details"]


@pytest.mark.parametrize(
    "off", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
async def test_thinking_can_be_switched_off(thinker: Path, off: Json) -> None:
    async with serving(directory=thinker) as worker:
        (choice,) = (await worker.answer(**off))["choices"]
    assert len(choice["message"]["content"]) == 16
    assert "reasoning_content" not in choice["message"]


async def test_the_settings_say_it_for_requests_that_do_not(thinker: Path) -> None:
    async with serving(directory=thinker, thinking=False) as worker:
        (silent,) = (await worker.answer())["choices"]
        (asked,) = (await worker.answer(reasoning_effort="low"))["choices"]
        (told,) = (await worker.answer(chat_template_kwargs={"enable_thinking": True}))["choices"]
    assert len(silent["message"]["content"]) == 16 and "reasoning_content" not in silent["message"]
    for choice in (asked, told):
        assert len(choice["message"]["reasoning_content"]) == 16
    async with serving(directory=thinker, thinking="high") as worker:
        (thoughtful,) = (await worker.answer())["choices"]
        (off,) = (await worker.answer(reasoning_effort="none"))["choices"]
    assert len(thoughtful["message"]["reasoning_content"]) == 16
    assert "reasoning_content" not in off["message"]


async def test_a_budget_ends_the_thinking(thinker: Path) -> None:
    async with serving(directory=thinker) as worker:
        body = await worker.answer(max_reasoning_tokens=5, max_tokens=40)
        free = await worker.answer(max_tokens=40)
        none = await worker.answer(max_reasoning_tokens=0, max_tokens=40)
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == free["choices"][0]["message"]["reasoning_content"][:5]
    assert len(message["content"]) > 20 and "</think>" not in message["content"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 6
    assert none["choices"][0]["message"].get("reasoning_content", "") == ""
    assert none["choices"][0]["message"]["content"]


async def test_a_structure_begins_behind_the_thinking(thinker: Path) -> None:
    async with serving(directory=thinker) as worker:
        body = await worker.answer(response_format=STRUCTURED, max_reasoning_tokens=8, max_tokens=100)
    (choice,) = body["choices"]
    assert len(choice["message"]["reasoning_content"]) == 8
    assert problem(json.loads(choice["message"]["content"]), SCHEMA) is None
    assert choice["finish_reason"] == "stop"


async def test_stop_sequences_are_for_the_answer(thinker: Path) -> None:
    async with serving(directory=thinker) as worker:
        thought = (await worker.answer())["choices"][0]["message"]["reasoning_content"]
        fields: Json = {"max_reasoning_tokens": 16, "max_tokens": 60}
        said = (await worker.answer(**fields))["choices"][0]["message"]["content"]
        in_thought = await worker.answer(stop=thought[3:6])
        in_answer = await worker.answer(**fields, stop=said[4:7])
    assert in_thought["choices"][0]["message"]["reasoning_content"] == thought
    (choice,) = in_answer["choices"]
    assert choice["message"]["content"] == said[: said.index(said[4:7])]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", said[4:7])


async def test_log_probabilities_are_those_of_the_answer(thinker: Path) -> None:
    async with serving(directory=thinker) as worker:
        body = await worker.answer(max_reasoning_tokens=5, max_tokens=40, logprobs=True)
    (choice,) = body["choices"]
    said = "".join(token["token"] for token in choice["logprobs"]["content"])
    assert said.strip() == choice["message"]["content"].strip()


async def test_earlier_reasoning_is_put_where_the_template_wants_it(thinker: Path) -> None:
    question: Json = {"role": "user", "content": "Hi"}

    async def prompt_tokens(**answer: str) -> int:
        messages = [question, {"role": "assistant", "content": "Yes", **answer}, question]
        response = await worker.client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 1}
        )
        return int(response.json()["usage"]["prompt_tokens"])

    async with serving(directory=thinker) as worker:
        plain = await prompt_tokens()
        assert await prompt_tokens(reasoning_content="Thought") == plain + 2 + len("Thought")
        assert await prompt_tokens(reasoning="Thought") == plain + 2 + len("Thought")


async def test_a_model_that_opens_the_block_itself_is_read_by_its_tokens() -> None:
    """A random model that says every token, so markers come in any order; the text is never lost."""
    async with serving(Tiny("qwen3", thinking=True, speaks="all", seed=3)) as worker:
        body = await worker.answer(temperature=1.0, seed=1, max_tokens=150, ignore_eos=True, n=4)
    assert body["usage"]["completion_tokens"] == 600
    for choice in body["choices"]:
        message = choice["message"]
        for text in (message["content"], message.get("reasoning_content", "")):
            assert "<think>" not in text and "</think>" not in text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "maximal"}, "reasoning_effort"),
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
        ({"max_reasoning_tokens": "few"}, "max_reasoning_tokens"),
    ],
)
async def test_what_is_wrong_is_named(fields: Json, param: str) -> None:
    async with serving() as worker:
        response = await worker.chat(**fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param

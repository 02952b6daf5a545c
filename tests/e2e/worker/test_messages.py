"""`POST /v1/messages` of a real worker, through Anthropic's own client and beside the chat route."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from tests.e2e.worker.serving import TINY, Worker, content, serving
from tests.fixtures.tiny import Tiny

if TYPE_CHECKING:
    # Takes seconds, and every process that collects the tests would.
    from anthropic import AsyncAnthropic

HELLO: Any = [{"role": "user", "content": "Hello"}]
LONG = "Tell me what there is to see from the hill above the harbour, and how to get there."
"""The end of a prompt is always computed: a short one is all end."""
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"],
        "additionalProperties": False,
    },
}
GREEDY: Any = {"extra_body": {"temperature": 0}}


@contextlib.asynccontextmanager
async def connected(
    tiny: Tiny = TINY, *, directory: Path | None = None
) -> AsyncIterator[tuple[Worker, "AsyncAnthropic"]]:
    from anthropic import AsyncAnthropic

    async with serving(tiny, directory=directory) as worker:
        transport = httpx.AsyncHTTPTransport(uds=str(worker.socket), verify=False)
        async with (
            httpx.AsyncClient(transport=transport, timeout=240) as http,
            AsyncAnthropic(
                base_url="http://worker", api_key="none", http_client=http, max_retries=0
            ) as client,
        ):
            yield worker, client


async def test_text_is_the_same_whole_streamed_and_as_chat_has_it() -> None:
    async with connected() as (worker, client):
        messages: Any = [{"role": "user", "content": LONG}]
        asked: Any = {"model": "tiny", "messages": messages, "max_tokens": 24, **GREEDY}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        chat = await worker.answer(LONG, max_tokens=24)
        async with worker.stream(LONG, max_tokens=24) as raw:
            streamed = content([event async for event in raw])
    (block,) = whole.content
    assert block.type == "text"
    assert block.text == "".join(pieces) == chat["choices"][0]["message"]["content"] == streamed
    assert whole.id.startswith("msg_") and whole.role == "assistant" and whole.model == "tiny"
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert [block.type for block in final.content] == ["text"]
    assert whole.usage.output_tokens == final.usage.output_tokens == 24
    assert whole.usage.input_tokens == chat["usage"]["prompt_tokens"]
    # The second and third found the prompt in the cache, and together it is as long as before.
    cached = final.usage.cache_read_input_tokens
    assert cached and cached + final.usage.input_tokens == whole.usage.input_tokens


async def test_what_is_new_in_the_cache_is_told_as_far_as_it_is_marked() -> None:
    mark: Any = {"cache_control": {"type": "ephemeral"}}
    hour: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system: Any = [{"type": "text", "text": f"You are a guide. {LONG}", **mark}]
    more: Any = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": LONG}]
    asked: Any = {"model": "tiny", "max_tokens": 4, "system": system, **GREEDY}
    async with connected() as (_, client):

        async def told(messages: Any, **fields: Any) -> tuple[int, int, int, int]:
            """Read, written, the rest, and the last written for an hour; the same streamed."""
            counted = await client.messages.count_tokens(model="tiny", messages=messages, system=system)
            usage = (await client.messages.create(messages=messages, **asked, **fields)).usage
            read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
            assert read is not None and written is not None and usage.cache_creation is not None
            assert read + written + usage.input_tokens == counted.input_tokens
            buckets = usage.cache_creation
            hours = buckets.ephemeral_1h_input_tokens
            assert buckets.ephemeral_5m_input_tokens + hours == written
            return read, written, usage.input_tokens, hours

        read, written, rest, _ = await told(HELLO)
        assert read == 0 and written > rest > 0, "the system prompt is marked, and longer"
        prompt = written + rest
        read, written, rest, hours = await told(more, **hour)
        assert read >= prompt and written == hours > 0 and rest < written, "all of it is marked"
        read, written, rest, _ = await told(more, **hour)
        assert read > 0 and written == 0 and rest > 0, "it is all there already"
        other: Any = {**asked, "messages": HELLO, "system": [{**system[0], "text": LONG}]}
        async with client.messages.stream(**other) as stream:
            begun = [event.message.usage async for event in stream if event.type == "message_start"]
            final = (await stream.get_final_message()).usage
        assert begun[0].cache_creation_input_tokens == final.cache_creation_input_tokens != 0
        assert begun[0].input_tokens == final.input_tokens


async def test_a_matched_stop_sequence_is_told() -> None:
    async with connected() as (_, client):
        asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 24, **GREEDY}
        (block,) = (await client.messages.create(**asked)).content
        assert block.type == "text"
        stop = block.text[5:8]
        stopped = await client.messages.create(**asked, stop_sequences=["never", stop])
        async with client.messages.stream(**asked, stop_sequences=[stop]) as stream:
            final = await stream.get_final_message()
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    for message in (stopped, final):
        blocks: list[Any] = list(message.content)
        (cut,) = blocks
        assert cut.type == "text"
        assert cut.text == block.text[: block.text.index(stop)]


async def test_an_answer_goes_on_from_what_was_said() -> None:
    async with connected() as (_, client):
        asked: Any = {"model": "tiny", "max_tokens": 24, **GREEDY}
        (block,) = (await client.messages.create(messages=HELLO, **asked)).content
        assert block.type == "text"
        begun = [*HELLO, {"role": "assistant", "content": block.text[:10]}]
        (rest,) = (await client.messages.create(messages=begun, **asked)).content
    assert rest.type == "text"
    assert (block.text[:10] + rest.text)[:24] == block.text


async def test_no_tokens_compute_the_prompt_only() -> None:
    async with connected() as (_, client):
        messages: Any = [{"role": "user", "content": LONG}]
        first = await client.messages.create(model="tiny", messages=messages, max_tokens=0)
        second = await client.messages.create(model="tiny", messages=messages, max_tokens=1)
    assert first.content == [] and first.stop_reason == "max_tokens"
    assert second.usage.cache_read_input_tokens


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["plain", "with tools"])
async def test_tokens_are_counted_as_they_are_computed(tools: Any) -> None:
    async with connected() as (_, client):
        asked: Any = {"model": "tiny", "messages": HELLO, "system": "Be brief.", "tools": tools}
        counted = await client.messages.count_tokens(**asked)
        answered = await client.messages.create(**asked, max_tokens=1)
        long: Any = [{"role": "user", "content": "x" * 9000}]
        too_long = await client.messages.count_tokens(model="tiny", messages=long)
    assert counted.input_tokens == answered.usage.input_tokens
    assert too_long.input_tokens > 9000  # more than the model takes


async def test_a_required_tool_is_called_whole_and_streamed() -> None:
    async with connected(Tiny("qwen3", thinking=True, speaks="all")) as (_, client):
        asked: Any = {
            "model": "tiny",
            "messages": HELLO,
            "max_tokens": 400,
            "tools": [TOOL],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "disabled"},
            **GREEDY,
        }
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        (call,) = [block for block in final.content if block.type == "tool_use"]
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": "rain"}],
        }
        conversation = [
            *HELLO,
            {"role": "assistant", "content": [block.model_dump() for block in final.content]},
            {"role": "user", "content": [result]},
        ]
        after = await client.messages.create(**{**asked, "messages": conversation, "tool_choice": None})
    assert whole.stop_reason == final.stop_reason == "tool_use"
    assert call.name == "get_weather" and isinstance(call.input["days"], int)
    assert [block.type for block in whole.content] == [block.type for block in final.content] == ["tool_use"]
    assert "input_json" in kinds
    assert after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0) > 20


@pytest.mark.slow
async def test_thinking_is_a_signed_block_that_may_be_sent_back(thinker: Path) -> None:
    async with connected(directory=thinker) as (_, client):
        asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 1040, **GREEDY}
        budget: Any = {"type": "enabled", "budget_tokens": 1024}
        async with client.messages.stream(**asked, thinking=budget) as stream:
            final = await stream.get_final_message()
        hidden = await client.messages.create(
            **{**asked, "max_tokens": 8}, thinking={"type": "adaptive", "display": "omitted"}
        )
        history: Any = [*HELLO, {"role": "assistant", "content": final.to_dict()["content"]}, *HELLO]
        counted = await client.messages.count_tokens(model="tiny", messages=history)
    thought, said = final.content
    assert thought.type == "thinking" and thought.thinking and thought.signature
    assert said.type == "text" and said.text
    details = final.usage.output_tokens_details
    assert details is not None and 1024 <= details.thinking_tokens < 1040
    assert final.stop_reason == "max_tokens"
    assert [block.type for block in hidden.content] == ["thinking"]
    assert hidden.content[0].type == "thinking" and hidden.content[0].signature
    assert not hidden.content[0].thinking
    assert counted.input_tokens > len(thought.thinking)


async def test_what_is_wrong_is_told_in_this_apis_shape() -> None:
    import anthropic

    async with connected() as (worker, client):
        asked: Any = {"model": "tiny", "max_tokens": 9}
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.messages.create(messages=[{"role": "user", "content": "x" * 9000}], **asked)
        body: Any = raised.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert "prompt is too long" in body["error"]["message"]
        bad_schema: Any = {"name": "t", "input_schema": {"type": "no such"}}
        choice: Any = {"type": "any"}
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.messages.create(messages=HELLO, tools=[bad_schema], tool_choice=choice, **asked)
        body = raised.value.body
        assert body["error"]["param"].startswith("tools[0].input_schema")
        wrong = await worker.client.get("/v1/messages")
        assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
        assert wrong.json()["type"] == "error"


async def test_an_error_after_the_beginning_is_the_last_event() -> None:
    async with serving() as worker:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 1500, "stream": True}
        async with worker.client.stream("POST", "/v1/messages", json=body) as response:
            lines = response.aiter_lines()
            start = ""
            while not start.startswith("data: "):
                start = await anext(lines)
            reply_id = json.loads(start.removeprefix("data: "))["message"]["id"]
            assert (await worker.client.post(f"/admin/requests/{reply_id}/cancel")).status_code == 200
            last = [line async for line in lines if line][-2:]
    assert last[0] == "event: error"
    assert json.loads(last[1].removeprefix("data: "))["error"]["code"] == "cancelled"

"""OpenAI's own client against a real worker: what it makes of calls and structures."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from openai import AsyncOpenAI, LengthFinishReasonError, pydantic_function_tool
from pydantic import BaseModel, Field

from tests.e2e.worker.serving import serving
from tests.fixtures.tiny import Tiny

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
NAMED: Any = {"type": "function", "function": {"name": "GetWeather"}}


class GetWeather(BaseModel):
    """Get the weather of a city."""

    # So long that it can't come in one event, however busy the machine is.
    city: str = Field(min_length=100, max_length=110)
    days: int = Field(ge=1, le=9)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[AsyncOpenAI]:
    async with serving(Tiny("qwen3", thinking=True, speaks="all")) as worker:
        transport = httpx.AsyncHTTPTransport(uds=str(worker.socket), verify=False)
        async with (
            httpx.AsyncClient(transport=transport, timeout=240) as http,
            AsyncOpenAI(base_url="http://worker/v1", api_key="none", http_client=http) as client,
        ):
            yield client


async def test_a_streamed_call_is_parsed_into_its_model() -> None:
    async with (
        connected() as client,
        client.chat.completions.stream(
            model="tiny",
            messages=MESSAGES,
            tools=[pydantic_function_tool(GetWeather)],
            tool_choice=NAMED,
            max_tokens=600,
            reasoning_effort="none",
            seed=1,
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        completion = await stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert kinds.count("tool_calls.function.arguments.done") == 1
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


async def test_a_structured_answer_is_parsed_into_its_model() -> None:
    async with connected() as client:
        completion = await client.chat.completions.parse(
            model="tiny",
            messages=MESSAGES,
            response_format=GetWeather,
            max_tokens=600,
            reasoning_effort="none",
            seed=1,
        )
    assert isinstance(completion.choices[0].message.parsed, GetWeather)


async def test_a_cut_answer_is_told_by_its_length() -> None:
    """Fault 40."""
    async with connected() as client:
        with pytest.raises(LengthFinishReasonError):
            await client.chat.completions.parse(
                model="tiny",
                messages=MESSAGES,
                tools=[pydantic_function_tool(GetWeather)],
                tool_choice=NAMED,
                max_tokens=50,
            )

"""`functions` and `function_call`, as clients that were written before there were tools use them."""

import json

from tests.e2e.worker.serving import Json, serving
from tests.e2e.worker.test_tools import SPEAKS, WORDY
from tests.unit.constraints.validate import problem

WEATHER: Json = {"name": "get_weather", "parameters": WORDY}
NAMED: Json = {"functions": [WEATHER], "function_call": {"name": "get_weather"}, "max_tokens": 300}


async def test_a_function_is_called_streamed_and_not() -> None:
    async with serving(SPEAKS) as worker:
        (choice,) = (await worker.answer(**NAMED))["choices"]
        async with worker.stream(**NAMED) as stream:
            chunks = [event["choices"][0] async for event in stream if isinstance(event, dict)]
        cut = (await worker.answer(**{**NAMED, "max_tokens": 60}))["choices"][0]
        turns = [
            {"role": "user", "content": "Weather?"},
            choice["message"],
            {"role": "function", "name": "get_weather", "content": "Sunny"},
        ]
        after = await worker.answer(messages=turns, functions=[WEATHER], function_call="none")
    message = choice["message"]
    call = message["function_call"]
    assert choice["finish_reason"] == "function_call"
    assert message["content"] is None and "tool_calls" not in message
    assert call["name"] == "get_weather" and problem(json.loads(call["arguments"]), WORDY) is None
    deltas = [chunk["delta"]["function_call"] for chunk in chunks if "function_call" in chunk["delta"]]
    assert deltas[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == call["arguments"]
    assert len(deltas) > 2, "arguments come as they are said"
    assert not any("tool_calls" in chunk["delta"] for chunk in chunks)
    assert chunks[-1]["finish_reason"] == "function_call"
    assert cut["finish_reason"] == "length" and cut["message"]["function_call"]["name"] == "get_weather"
    assert after["choices"][0]["finish_reason"] in ("stop", "length")


async def test_a_schema_that_can_not_be_compiled_is_named_as_it_was_sent() -> None:
    function = {"name": "f", "parameters": {"type": "strin"}}
    async with serving(SPEAKS) as worker:
        response = await worker.chat(functions=[function], function_call={"name": "f"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "functions[0].parameters.type"
    assert "tools" not in response.json()["error"]["message"]

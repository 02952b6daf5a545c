"""Reply events to the Responses API's items and stream, held against the official schema."""

import json
import time
from typing import Any, cast

from shared.errors import PublicError
from shared.responses.answer import Context
from shared.responses.asked import parse_asked
from shared.responses.sealed import unseal
from tests.fixtures.responses import check_events, check_response, parse_stream
from worker.api.responses import _Answer
from worker.reply import Choices
from worker.request import Sampling
from worker.text.events import Finished, ReplyEvent, TextDelta, Usage
from worker.text.logprobs import Likelihood, TokenLikelihood
from worker.text.pieces import CallArguments, CallBegan, CallCut, CallEnded, CallVoided, Reasoning

Json = dict[str, Any]
USAGE = Usage(prompt=7, completion=5, cached=3, reasoning=2)


class OneReply:
    """As much of `Choices` as a response reads."""

    class Row:
        sampling = Sampling(temperature=0.5, top_p=0.9)

    row = Row()
    prompt_tokens = 7
    replies: "list[OneReply]"

    def __init__(self) -> None:
        self.replies = [self]


def answer(**fields: Any) -> _Answer:
    asked = parse_asked(json.dumps({"input": "Hi", **fields}).encode())
    context = Context("resp_1", int(time.time()), fields.get("first", 0))
    return _Answer(asked, context, "tiny", cast(Choices, OneReply()))


def stream(*batches: list[ReplyEvent], **fields: Any) -> Json:
    """The response that a stream of these batches ends with, once the stream has been checked."""
    one = answer(**fields)
    data = one.opening() + b"".join([one.take(batch) for batch in batches])
    response = check_events(parse_stream(data), first=fields.get("first", 0))
    assert response == json.loads(json.dumps(one.response))
    check_response(response)
    return response


def test_a_text() -> None:
    response = stream([TextDelta("He"), TextDelta("llo")], [TextDelta(" you"), Finished("stop", USAGE)])
    (message,) = response["output"]
    assert message["content"][0]["text"] == "Hello you"
    assert response["status"] == "completed" and response["completed_at"] >= response["created_at"]
    assert (response["temperature"], response["top_p"]) == (0.5, 0.9)
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_thinking_text_and_calls_are_items_in_order() -> None:
    response = stream(
        [Reasoning("Let me"), Reasoning(" see"), TextDelta("I look. "), CallBegan(0, "call_a", "look")],
        [CallArguments(0, '{"a"'), CallArguments(0, ":1}"), CallEnded(0), CallBegan(1, "call_b", "go")],
        [CallArguments(1, "{}"), CallEnded(1), Finished("tool_calls", USAGE)],
    )
    thought, said, first, second = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see"}]
    assert thought["summary"] == [] and "encrypted_content" not in thought
    assert said["content"][0]["text"] == "I look. "
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_a", "look", '{"a":1}')
    assert (second["call_id"], second["arguments"]) == ("call_b", "{}")
    assert {item["status"] for item in response["output"]} == {"completed"}


def test_a_call_names_the_namespace_of_its_function() -> None:
    function: Json = {"type": "function", "name": "go", "parameters": {}, "strict": None}
    tools = [{"type": "namespace", "name": name, "description": "", "tools": [function]} for name in "ab"]
    response = stream(
        [CallBegan(0, "c", "b__go"), CallArguments(0, "{}"), CallEnded(0), Finished("tool_calls", USAGE)],
        tools=[*tools, {"type": "web_search"}],
    )
    (call,) = response["output"]
    assert (call["name"], call["namespace"]) == ("go", "b")
    assert [tool["type"] for tool in response["tools"]] == ["namespace", "namespace"], "what the model had"


def test_thinking_as_a_summary_and_sealed() -> None:
    response = stream(
        [Reasoning("Hm"), Reasoning("."), Finished("stop", USAGE)],
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
    )
    (thought,) = response["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert unseal(thought["encrypted_content"]) == "Hm."
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}


def test_the_length_leaves_the_open_item_incomplete() -> None:
    response = stream([TextDelta("Once upon"), Finished("length", USAGE)], max_output_tokens=16)
    assert response["status"] == "incomplete" and response["completed_at"] is None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_a_call_that_was_cut_or_does_not_parse_is_incomplete() -> None:
    cut = stream([CallBegan(0, "c", "f"), CallArguments(0, '{"a'), CallCut(0), Finished("length", USAGE)])
    assert [item["status"] for item in cut["output"]] == ["incomplete"]
    nameless = stream([CallCut(None), Finished("length", USAGE)])
    assert nameless["output"] == []
    voided = stream(
        [CallBegan(0, "c", "f"), CallArguments(0, "{a"), CallVoided(0)],
        [TextDelta("<tool_call>{a", flagged=True), Finished("stop", USAGE)],
    )
    assert [(item["type"], item["status"]) for item in voided["output"]] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]


def test_log_probabilities_are_beside_the_text() -> None:
    token = TokenLikelihood(b"He", -0.5, best=(Likelihood(b"He", -0.5), Likelihood(b"\xff", float("-inf"))))
    response = stream(
        [TextDelta("He", (token,)), Finished("stop", USAGE)], include=["message.output_text.logprobs"]
    )
    (entry,) = response["output"][0]["content"][0]["logprobs"]
    assert entry["token"] == "He" and entry["top_logprobs"][1]["logprob"] == -9999.0


def test_a_failure_in_the_middle_is_the_response_s_own_event() -> None:
    one = answer()
    data = one.opening() + one.take([TextDelta("Hel")])
    data += one.fail(PublicError(500, "engine_error", "The engine failed on this request."))
    response = check_events(parse_stream(data))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "The engine failed on this request."}
    assert response["output"][0]["content"][0]["text"] == "Hel"


def test_a_response_that_was_announced_goes_on_counting() -> None:
    one = answer(first=2)
    data = one.opening() + one.take([TextDelta("a"), Finished("stop", USAGE)])
    events = parse_stream(data)
    assert events[0]["type"] == "response.in_progress"
    check_events(events, first=2)


def test_the_response_echoes_what_was_asked() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": True}
    response = stream(
        [Finished("stop", USAGE)],
        instructions="Be brief.",
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        max_output_tokens=50,
        max_tool_calls=3,
        metadata={"a": "b"},
        previous_response_id="resp_0",
        prompt_cache_key="k",
        safety_identifier="s",
        service_tier="flex",
        store=False,
        temperature=0.25,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        top_logprobs=2,
        truncation="auto",
        user="u",
    )
    assert response["tools"] == [{**tool, "description": None}]
    assert response["text"]["format"]["schema"] == schema and response["text"]["format"]["strict"] is True
    shown = {
        "instructions": "Be brief.",
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "default",
        "store": False,
        "temperature": 0.25,
        "top_logprobs": 2,
        "truncation": "auto",
        "user": "u",
    }
    assert {name: response[name] for name in shown} == shown
    conversation = stream([Finished("stop", USAGE)], conversation={"id": "conv_1"})
    assert conversation["conversation"] == {"id": "conv_1"}

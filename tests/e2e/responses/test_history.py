"""Responses and conversations as the official SDK uses them."""

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.e2e.responses.conftest import WINDOW
from tests.fixtures.harness import Service
from tests.fixtures.responses import check_events, check_response, parse_stream

Json = dict[str, Any]
ECHO: Json = {"fake": {"echo": True}}


def create(sdk: openai.OpenAI, text: Any, **fields: Any) -> Any:
    return sdk.responses.create(model=fields.pop("model", "a"), input=text, extra_body=ECHO, **fields)


def post(service: Service, path: str, **body: Any) -> httpx.Response:
    return service.client.post(path, json=body)


def test_a_response_is_kept_retrieved_and_deleted(sdk: openai.OpenAI) -> None:
    made = create(sdk, "Hello", metadata={"a": "b"}, instructions="Be brief.")
    assert made.output_text == "user: Hello|"
    kept = sdk.responses.retrieve(made.id)
    assert kept == made
    check_response(kept.to_dict())
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.delete(made.id)


def test_what_is_not_stored_is_not_there(sdk: openai.OpenAI) -> None:
    made = create(sdk, "Hello", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        create(sdk, "And?", previous_response_id=made.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_turns_go_on_from_each_other_over_models(sdk: openai.OpenAI) -> None:
    first = create(sdk, "One", instructions="Only for this turn.")
    second = create(sdk, "Two", previous_response_id=first.id, model="b")
    third = create(sdk, [{"role": "user", "content": "Three"}], previous_response_id=second.id)
    assert second.output_text == "user: One|assistant: user: One||user: Two|"
    assert third.output_text.startswith("user: One|") and third.output_text.endswith("|user: Three|")
    assert (second.model, third.model, third.previous_response_id) == ("b", "a", second.id)
    # A branch is as good as the trunk, and what is built upon stays when its name is gone.
    sdk.responses.delete(second.id)
    branch = create(sdk, "Else", previous_response_id=first.id)
    assert branch.output_text == "user: One|assistant: user: One||user: Else|"
    assert "user: Two|" in create(sdk, "Four", previous_response_id=third.id).output_text


def test_function_calls_and_their_results(sdk: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    fake = {"fake": {"call": "f", "chunks": 2}}
    made = sdk.responses.create(model="a", input="Call", tools=[tool], extra_body=fake)
    (call,) = made.output
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    after = create(sdk, [result], previous_response_id=made.id)
    assert after.output_text == "user: Call|function_call|output: 42|"


def test_input_items_in_pages(sdk: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"Number {number}"} for number in range(5)]
    made = create(sdk, [*items, {"role": "assistant", "content": "Hm"}])
    page = sdk.responses.input_items.list(made.id, limit=2, order="asc")
    assert page.has_more
    everything: list[Any] = list(page)
    assert [item.content[0].text for item in everything] == [*(f"Number {n}" for n in range(5)), "Hm"]
    assert everything[-1].content[0].type == "output_text"
    latest = sdk.responses.input_items.list(made.id, limit=1)
    assert latest.data == everything[-1:]
    older = sdk.responses.input_items.list(made.id, limit=2, after=everything[3].id)
    assert older.data == [everything[2], everything[1]] and older.has_more
    # An item can be named instead of told again.
    again = create(sdk, [{"type": "item_reference", "id": everything[2].id}])
    assert again.output_text == "user: Number 2|"


def test_conversations(sdk: openai.OpenAI) -> None:
    conversation = sdk.conversations.create(
        metadata={"topic": "demo"}, items=[{"type": "message", "role": "user", "content": "Hello"}]
    )
    assert sdk.conversations.retrieve(conversation.id) == conversation
    first = create(sdk, "One", conversation=conversation.id)
    second = create(sdk, "Two", conversation={"id": conversation.id}, model="b")
    assert first.output_text == "user: Hello|user: One|"
    assert second.output_text.startswith("user: Hello|user: One|assistant: user: Hello|user: One||user: Two|")
    assert second.conversation.id == conversation.id
    items = list(sdk.conversations.items.list(conversation.id, order="asc", limit=2))
    assert len(items) == 5
    # A response of a conversation can be gone on from without it.
    aside = create(sdk, "Aside", previous_response_id=first.id)
    assert aside.output_text == "user: Hello|user: One|assistant: user: Hello|user: One||user: Aside|"
    assert len(list(sdk.conversations.items.list(conversation.id))) == 5

    updated = sdk.conversations.update(conversation.id, metadata={"topic": "other"})
    assert updated.metadata == {"topic": "other"}
    added = sdk.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "Extra"}]
    )
    (extra,) = added.data
    assert extra.id is not None
    assert sdk.conversations.items.retrieve(extra.id, conversation_id=conversation.id) == extra
    assert sdk.conversations.items.delete(extra.id, conversation_id=conversation.id).id == conversation.id
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.retrieve(extra.id, conversation_id=conversation.id)
    assert sdk.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError) as caught:
        create(sdk, "Three", conversation=conversation.id)
    assert caught.value.code == "conversation_not_found"


def test_a_stream_is_official_and_kept(service: Service, sdk: openai.OpenAI) -> None:
    answer = post(service, "/v1/responses", model="a", input="Hello", stream=True, fake={"dribble_bytes": 7})
    response = check_events(parse_stream(answer.content))
    assert answer.headers["x-accel-buffering"] == "no" and answer.headers["x-request-id"]
    kept = service.client.get(f"/v1/responses/{response['id']}").json()
    assert kept == response
    with sdk.responses.stream(model="a", input="Hello", extra_body=ECHO) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "user: Hello|"


def test_parse_helpers(sdk: openai.OpenAI) -> None:
    class Answer(BaseModel):
        text: str

    says = {"fake": {"say": json.dumps({"text": "x"})}}
    parsed = sdk.responses.parse(model="a", input="Hello", text_format=Answer, extra_body=says)
    assert parsed.output_parsed == Answer(text="x")
    with sdk.responses.stream(model="a", input="Hello", text_format=Answer, extra_body=says) as stream:
        assert stream.get_final_response().output_parsed == Answer(text="x")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/responses", 405, "method_not_allowed"),
        ("PUT", "/v1/responses/resp_x", 405, "method_not_allowed"),
        ("GET", "/v1/responses/resp_x", 404, "response_not_found"),
        ("GET", "/v1/responses/..%2f..%2fetc", 404, "response_not_found"),
        ("GET", "/v1/responses/resp_x/input_items", 404, "response_not_found"),
        ("POST", "/v1/responses/resp_x/cancel", 404, "response_not_found"),
        ("GET", "/v1/responses/resp_x/cancel", 405, "method_not_allowed"),
        ("GET", "/v1/responses/compact", 405, "method_not_allowed"),
        ("GET", "/v1/responses/input_tokens", 405, "method_not_allowed"),
        ("GET", "/v1/responses/resp_x/else", 404, "not_found"),
        ("GET", "/v1/responses/", 404, "not_found"),
        ("GET", "/v1/conversations", 405, "method_not_allowed"),
        ("GET", "/v1/conversations/conv_x", 404, "conversation_not_found"),
        ("DELETE", "/v1/conversations/conv_x", 404, "conversation_not_found"),
        ("GET", "/v1/conversations/conv_x/items", 404, "conversation_not_found"),
        ("GET", "/v1/conversations/conv_x/items/msg_x", 404, "conversation_not_found"),
        ("GET", "/v1/responsesx", 404, "not_found"),
    ],
)
def test_paths_and_methods(service: Service, method: str, path: str, status: int, code: str) -> None:
    answer = service.client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": "x"}, "model"),
        ("/v1/responses", {"model": "a"}, "input"),
        ("/v1/responses", {"model": "a", "input": "x", "temperature": 9}, "temperature"),
        ("/v1/responses", {"model": "a", "input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ("/v1/responses", {"model": "a", "input": "x", "tools": [{"type": "mcp"}]}, "tools[0].type"),
        ("/v1/responses/compact", {"model": "a"}, "input"),
        ("/v1/responses/input_tokens", {"model": "a"}, "input"),
        ("/v1/conversations", {"metadata": {"a": 1}}, "metadata[...]"),
        ("/v1/conversations", {"items": [{"role": "user"}]}, "items[0].content"),
        ("/v1/conversations", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ("/v1/conversations/conv_x/items", {"items": []}, "items"),
        ("/v1/conversations/conv_x/items", {}, "items"),
        ("/v1/conversations/conv_x", {}, "metadata"),
    ],
)
def test_bad_bodies_name_the_field(service: Service, path: str, body: Json, param: str) -> None:
    answer = post(service, path, **body)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=msg_x", "after"),
        ("include=all", "include"),
        ("include[]=all", "include"),
    ],
)
def test_bad_queries_name_the_parameter(service: Service, sdk: openai.OpenAI, query: str, param: str) -> None:
    made = create(sdk, "Hello")
    answer = service.client.get(f"/v1/responses/{made.id}/input_items?{query}")
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param
    for query, param in (
        ("stream=1", "stream"),
        ("stream=true", "stream"),
        ("starting_after=3", "starting_after"),
    ):
        answer = service.client.get(f"/v1/responses/{made.id}?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_long_conversations_are_condensed_or_refused(service: Service, sdk: openai.OpenAI) -> None:
    long = " ".join(f"w{number}" for number in range(60))
    with pytest.raises(openai.BadRequestError) as caught:
        create(sdk, [{"role": "user", "content": long}] * 4)
    assert caught.value.code == "context_length_exceeded"
    turns: Any = [{"role": "developer", "content": "Rules stay."}]
    for _ in range(4):
        turns += [{"role": "user", "content": long}, {"role": "assistant", "content": "Yes."}]
    asked: Any = [*turns, {"role": "user", "content": "And now?"}]
    made = sdk.responses.create(model="a", input=asked, truncation="auto")
    assert made.usage is not None and made.usage.input_tokens < WINDOW
    # What was condensed is not condensed again by the next turn.
    said = create(sdk, "Next?", previous_response_id=made.id).output_text.split("|")
    assert said[0] == "developer: Rules stay." and said[1].startswith("summary: ")
    assert said[-4:] == ["user: And now?", "assistant: t0 t1 t2 ", "user: Next?", ""]
    # Without room for it nothing helps, and it is said with the limit.
    with pytest.raises(openai.BadRequestError):
        create(sdk, " ".join(["word"] * 300), truncation="auto")


def test_a_stream_is_alive_while_its_past_is_condensed(service: Service) -> None:
    long = " ".join(f"w{number}" for number in range(60))
    items = [{"role": "user", "content": long}] * 4
    answer = post(service, "/v1/responses", model="b", input=items, truncation="auto", stream=True)
    assert answer.content.startswith(b": ping\n\n")
    check_events(parse_stream(answer.content))
    # An error can only be an event by then.
    endless = [*items, {"role": "user", "content": "word " * 300}]
    refused = post(service, "/v1/responses", model="b", input=endless, truncation="auto", stream=True)
    (event,) = parse_stream(refused.content)
    assert (event["type"], event["code"]) == ("error", "context_length_exceeded")


def test_a_conversation_is_condensed_once(service: Service, sdk: openai.OpenAI) -> None:
    long = " ".join(f"w{number}" for number in range(60))
    items: Any = [{"type": "message", "role": "user", "content": long}] * 4
    conversation = sdk.conversations.create(items=items)
    first = create(sdk, "One?", conversation=conversation.id, truncation="auto")
    second = create(sdk, "Two?", conversation=conversation.id)
    assert first.output_text.count("summary: ") == 1
    assert second.output_text.startswith(first.output_text[: first.output_text.index("user: One?")])
    assert len(list(sdk.conversations.items.list(conversation.id))) == 8


def test_compaction(service: Service, sdk: openai.OpenAI) -> None:
    first = create(sdk, "One")
    made = sdk.responses.compact(model="a", previous_response_id=first.id, input="Two")
    assert made.usage.total_tokens
    assert [item.type for item in made.output] == ["message", "message", "compaction"]
    # The SDK takes all messages of an output for the model's own.
    body = {"model": "a", "previous_response_id": first.id, "input": "Two"}
    window = post(service, "/v1/responses/compact", **body).json()["output"]
    after = create(sdk, [*window, {"role": "user", "content": "Three"}])
    said = after.output_text.split("|")
    assert said[:2] == ["user: One", "user: Two"] and said[2].startswith("summary: ")


def test_input_tokens(sdk: openai.OpenAI) -> None:
    first = create(sdk, "One")
    counted = sdk.responses.input_tokens.count(model="a", input="Two", previous_response_id=first.id)
    assert counted.input_tokens == 2 + 3 + 2

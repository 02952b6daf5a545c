"""Responses in the background, and what becomes of responses when processes die."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fixtures.facts import told_to_worker
from tests.fixtures.harness import Service, wait_until
from tests.fixtures.models import models_config, write_fake_model
from tests.fixtures.responses import check_events, check_response, parse_stream

Json = dict[str, Any]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def timeline(service: Service, name: str) -> Json:
    found: Json = service.client.get("/stats", params={"request": name}).json()
    return found


def begin(sdk: openai.OpenAI, fake: Json, model: str = "a", **fields: Any) -> Any:
    body = {"fake": fake}
    return sdk.responses.create(model=model, input="Hello", background=True, extra_body=body, **fields)


def until(sdk: openai.OpenAI, response_id: str, *statuses: str) -> Any:
    """Poll as clients do."""
    found: list[Any] = []

    def reached() -> bool:
        found.append(sdk.responses.retrieve(response_id))
        return found[-1].status in statuses

    wait_until(reached, f"not {statuses}")
    return found[-1]


def test_polling(sdk: openai.OpenAI, tmp_path: Path) -> None:
    end = tmp_path / "end"
    made = begin(sdk, {"chunks": 4, "until": str(end)})
    assert made.status == "queued" and made.background is True
    check_response(made.to_dict())
    # It can be gone on from only once it is there.
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.create(model="a", input="And?", previous_response_id=made.id)
    assert caught.value.code == "response_in_progress"
    until(sdk, made.id, "in_progress")
    end.touch()
    done = until(sdk, made.id, "completed")
    assert done.output_text == "t0 t1 t2 t3 "
    check_response(done.to_dict())
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.cancel(made.id)
    assert caught.value.code == "response_ended"


def test_a_stream_can_be_left_and_taken_up_again(service: Service, sdk: openai.OpenAI) -> None:
    body = {"model": "a", "input": "Hi", "background": True, "stream": True}
    body["fake"] = {"chunks": 6, "interval_ms": 20}
    seen = b""
    with service.client.stream("POST", "/v1/responses", json=body) as answer:
        for chunk in answer.iter_bytes():
            seen += chunk
            if seen.count(b"output_text.delta\ndata") >= 2:
                break
    seen = seen[: seen.rindex(b"\n\n") + 2]
    first = parse_stream(seen)
    response_id, last = first[0]["response"]["id"], first[-1]["sequence_number"]
    # While it goes on, and again when it is over.
    running, over = (
        [event.to_dict() for event in sdk.responses.retrieve(response_id, stream=True, starting_after=last)]
        for _ in range(2)
    )
    assert running == over
    response = check_events([*first, *running])
    assert response["output"][0]["content"][0]["text"] == "t0 t1 t2 t3 t4 t5 "
    whole = service.client.get(f"/v1/responses/{response_id}", params={"stream": "true"})
    assert check_events(parse_stream(whole.content)) == response
    assert [event["type"] for event in first[:2]] == ["response.created", "response.queued"]


def test_it_is_traced_from_its_coming_to_its_end(service: Service, sdk: openai.OpenAI) -> None:
    named = {"x-request-id": "mine", "traceparent": TRACE, "x-session-id": "s"}
    made = begin(sdk, {"chunks": 2, "first_ms": 300}, extra_headers=named)
    until(sdk, made.id, "completed")
    wait_until(lambda: "ended_ms" in timeline(service, "mine"), "its timeline goes on")
    line = timeline(service, "mine")
    assert (line["status"], line["model"]) == (200, "a")
    assert line["ended_ms"] >= 300 and line["placed_ms"] <= line["ended_ms"]
    assert told_to_worker(service, *named) == named
    cancelled = begin(sdk, {"chunks": 1000, "interval_ms": 20}, extra_headers={"x-request-id": "other"})
    assert "ended_ms" not in timeline(service, "other"), "the answer that it is queued is not its end"
    sdk.responses.cancel(cancelled.id)
    wait_until(lambda: timeline(service, "other").get("status") == 499, "it was cancelled")


SEARCH: Json = {"type": "web_search"}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
LEFT_OUT = "left out: tools[0] (web_search)"


def test_what_was_left_out_of_it_is_told_while_it_goes_on_and_afterwards(service: Service) -> None:
    """The worker says it when the response was announced already: it was lost."""
    body = {"model": "a", "input": "Hi", "tools": [SEARCH, WEATHER], "background": True}
    made = service.client.post("/v1/responses", json=body)
    assert made.json()["status"] == "queued"
    path = f"/v1/responses/{made.json()['id']}"
    wait_until(lambda: service.client.get(path).json()["status"] == "completed", "it goes on")
    assert LEFT_OUT in service.client.get(path).headers["warning"]
    line = timeline(service, made.headers["x-request-id"])
    assert len(line["warnings"]) == 1 and LEFT_OUT in line["warnings"][0]
    followed = service.client.post("/v1/responses", json={**body, "stream": True, "background": True})
    assert "warning" not in followed.headers and LEFT_OUT in followed.text.split("event: response.in_prog")[0]
    events = parse_stream(followed.content)
    again = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    assert LEFT_OUT in service.client.get(again).headers["warning"]
    # One that came in time is kept as well, and those who were given all they asked for hear nothing.
    now = service.client.post("/v1/responses", json={**body, "background": False})
    kept = service.client.get(f"/v1/responses/{now.json()['id']}")
    assert LEFT_OUT in now.headers["warning"] and kept.headers["warning"] == now.headers["warning"]
    plain = service.client.post("/v1/responses", json={**body, "tools": [WEATHER], "background": False})
    assert "warning" not in service.client.get(f"/v1/responses/{plain.json()['id']}").headers


def test_cancelling(service: Service, sdk: openai.OpenAI) -> None:
    made = begin(sdk, {"chunks": 1000, "interval_ms": 20})
    until(sdk, made.id, "in_progress")
    cancelled = sdk.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert sdk.responses.cancel(made.id) == sdk.responses.retrieve(made.id) == cancelled
    wait_until(lambda: (service.worker("a") or {})["in_flight"] == 0, "the worker goes on")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.cancel(sdk.responses.create(model="a", input="Hello").id)
    assert caught.value.param == "response_id"


def test_deleting_what_is_under_way_stops_it(service: Service, sdk: openai.OpenAI) -> None:
    made = begin(sdk, {"chunks": 1000, "interval_ms": 20})
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    wait_until(lambda: (service.worker("a") or {})["in_flight"] == 0, "the worker goes on")


def test_a_refusal_of_the_worker_fails_it(sdk: openai.OpenAI) -> None:
    made = begin(sdk, {"status": 503})
    failed = until(sdk, made.id, "failed")
    assert failed.error is not None and failed.error.code == "server_error"
    too_long = sdk.responses.create(model="a", input="word " * 300, background=True)
    assert until(sdk, too_long.id, "failed").error.code == "invalid_prompt"


def test_a_long_past_is_condensed_in_the_background_too(sdk: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": "word " * 60}] * 4
    made = sdk.responses.create(model="a", input=items, background=True, truncation="auto")
    assert made.status == "queued"
    assert until(sdk, made.id, "completed", "failed").status == "completed"


def test_a_worker_that_dies_before_its_first_event_is_replaced(sdk: openai.OpenAI) -> None:
    worker_dies = {"die_before_first_byte": True, "generations": [1]}
    made = begin(sdk, worker_dies)
    assert until(sdk, made.id, "completed", "failed").status == "completed"


def test_a_request_that_its_worker_gives_back_is_asked_again(sdk: openai.OpenAI) -> None:
    made = begin(sdk, {"hand_back": 2})
    assert until(sdk, made.id, "completed", "failed").status == "completed"


def test_a_worker_that_dies_in_the_middle(service: Service, sdk: openai.OpenAI) -> None:
    """The response failed, in the stream and where it is kept; the conversation goes on."""
    first = sdk.responses.create(model="b", input="One", extra_body={"fake": {"echo": True}})
    worker = service.worker("b")
    assert worker is not None
    dies = {"chunks": 3, "interval_ms": 30, "die_after": 1, "generations": [worker["generation"]]}
    body = {"model": "b", "input": "Two", "previous_response_id": first.id, "fake": dies}
    answer = service.client.post("/v1/responses", json={**body, "stream": True})
    events = parse_stream(answer.content)
    failed = check_events(events)
    assert failed["status"] == "failed" and failed["output"][0]["content"][0]["text"] == "t0 "
    assert failed["error"]["code"] == "server_error" and failed["error"]["message"]
    assert service.client.get(f"/v1/responses/{failed['id']}").json() == failed
    again = sdk.responses.create(
        model="b", input="Two", previous_response_id=first.id, extra_body={"fake": {"echo": True}}
    )
    assert again.output_text == "user: One|assistant: user: One||user: Two|"
    # Not streamed, the connection breaks: it must not look like an answer.
    worker = service.worker("b")
    assert worker is not None
    cut = {**dies, "generations": [worker["generation"]]}
    with contextlib.suppress(httpx.RemoteProtocolError):
        answer = service.client.post("/v1/responses", json={**body, "fake": cut})
        assert answer.status_code != 200 or "t2" in answer.text


def test_a_client_that_leaves_stops_its_response(service: Service, sdk: openai.OpenAI) -> None:
    body = {"model": "a", "input": "Hi", "stream": True, "fake": {"chunks": 1000, "interval_ms": 10}}
    with service.client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        seen, chunks = b"", answer.iter_bytes()
        while b"\n\n" not in seen:
            seen += next(chunks)
    response_id = parse_stream(seen[: seen.index(b"\n\n") + 2])[0]["response"]["id"]
    wait_until(lambda: (service.worker("a") or {})["in_flight"] == 0, "the worker goes on")
    kept = f"/v1/responses/{response_id}"
    wait_until(lambda: service.client.get(kept).json()["status"] == "cancelled", "it is not cancelled")


def test_what_was_said_outlives_the_supervisor(tmp_path: Path) -> None:
    """kill -9 of everything in the middle: what was complete is there, what was not is failed."""
    config = models_config(a=write_fake_model(tmp_path / "a"))
    with Service(tmp_path / "home", fake=True, config=config) as service:
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as sdk:
            first = sdk.responses.create(model="a", input="One", extra_body={"fake": {"echo": True}})
            conversation = sdk.conversations.create(items=[{"role": "user", "content": "Hello"}])
            running = begin(sdk, {"chunks": 1000, "interval_ms": 20}, stream=True)
            events = [next(running).to_dict() for _ in range(4)]
            slow = begin(sdk, {"chunks": 1000, "interval_ms": 20})
        service.kill()
        service.start()
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as sdk:
            assert sdk.responses.retrieve(first.id) == first
            assert sdk.conversations.retrieve(conversation.id) == conversation
            again = sdk.responses.create(
                model="a", input="Two", previous_response_id=first.id, extra_body={"fake": {"echo": True}}
            )
            assert again.output_text.startswith("user: One|")
            failed = sdk.responses.retrieve(slow.id)
            assert failed.status == "failed" and failed.error is not None
            check_response(failed.to_dict())
            name, last = events[0]["response"]["id"], events[-1]["sequence_number"]
            (end,) = sdk.responses.retrieve(name, stream=True, starting_after=last)
            assert end.type == "response.failed" and end.sequence_number == last + 1
            # A stop in good order: what is under way is failed, and kept so.
            left = begin(sdk, {"chunks": 10_000, "interval_ms": 20})
            until(sdk, left.id, "in_progress")
        assert service.process is not None
        os.kill(service.process.pid, signal.SIGTERM)
        # No patience for the drain. Two of one kind at once would arrive as one.
        os.kill(service.process.pid, signal.SIGINT)
        service.process.wait(20)
        service.start()
        kept = service.client.get(f"/v1/responses/{left.id}").json()
        assert kept["status"] == "failed"

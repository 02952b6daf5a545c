"""WebSocket mode, with the official SDK and with a client that says just what it is told to."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.fixtures.facts import told_to_worker
from tests.fixtures.harness import Service, wait_until
from tests.fixtures.models import models_config, write_fake_model
from tests.fixtures.responses import check_events

Json = dict[str, Any]
ENDINGS = ("response.completed", "response.failed", "error")
ECHO: Json = {"fake": {"echo": True}}


@contextlib.contextmanager
def opened(service: Service, **options: Any) -> Iterator[Connection]:
    url = service.url.replace("http://", "ws://") + "/v1/responses"
    with connect(url, compression=None, proxy=None, **options) as socket:
        yield socket


def say(socket: Connection, **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "model": "a", "input": "Hi", **fields}))


def events(socket: Connection) -> list[Json]:
    """Those of one turn."""
    seen: list[Json] = []
    while not seen or seen[-1]["type"] not in ENDINGS:
        seen.append(json.loads(socket.recv(timeout=20)))
    return seen


def turn(socket: Connection, **fields: Any) -> Json:
    """The response that a turn ends with, once its events have been checked."""
    say(socket, **fields)
    return check_events(events(socket))


def text(response: Json) -> str:
    return str(response["output"][0]["content"][0]["text"])


def refusal(socket: Connection, **fields: Any) -> Json:
    say(socket, **fields)
    (event,) = events(socket)
    return event


def test_the_sdk_takes_turns(sdk: openai.OpenAI) -> None:
    with sdk.responses.connect() as connection:
        previous: str | None = None
        output = ""
        for said in ("One", "Two"):
            create: Any = {"type": "response.create", "model": "a", "input": said, **ECHO}
            if previous:
                create["previous_response_id"] = previous
            connection.send(create)
            for event in connection:
                if event.type == "response.completed":
                    previous = event.response.id
                    output = event.response.output_text
                    break
            assert output.endswith(f"user: {said}|")
    assert output == "user: One|assistant: user: One||user: Two|"
    assert previous is not None
    assert sdk.responses.retrieve(previous).output_text == output


def test_turns_without_a_store(service: Service, sdk: openai.OpenAI) -> None:
    """Connection-local memory goes on; another connection has to tell everything again."""
    with opened(service) as socket:
        first = turn(socket, input="One", store=False, **ECHO)
        second = turn(socket, input="Two", store=False, previous_response_id=first["id"], **ECHO)
        assert text(second) == "user: One|assistant: user: One||user: Two|"
        over_http = service.client.get(f"/v1/responses/{second['id']}")
        assert over_http.status_code == 404
    with opened(service) as socket:
        lost = refusal(socket, previous_response_id=second["id"])
        assert (lost["type"], lost["status"]) == ("error", 400)
        assert lost["error"]["code"] == "previous_response_not_found"
        assert lost["error"]["param"] == "previous_response_id"
        # The connection goes on, from the whole context or from what is stored.
        whole = [{"role": "user", "content": "One"}, {"role": "user", "content": "Three"}]
        assert text(turn(socket, input=whole, store=False, **ECHO)) == "user: One|user: Three|"
        stored = sdk.responses.create(model="a", input="Kept", extra_body=ECHO)
        assert text(turn(socket, previous_response_id=stored.id, **ECHO)).startswith("user: Kept|")


def test_each_turn_has_a_timeline_and_the_worker_gets_its_name(service: Service) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with opened(service, additional_headers={"x-request-id": "socket", "traceparent": trace}) as socket:
        turn(socket)
        refusal(socket, temperature=9)
        turn(socket)
        told = told_to_worker(service, "x-request-id", "traceparent")
        assert told == {"x-request-id": "socket:3", "traceparent": trace}
    lines = [service.client.get("/stats", params={"request": f"socket:{n}"}).json() for n in (1, 2, 3)]
    assert [line["status"] for line in lines] == [200, 400, 200]
    assert lines[0]["model"] == "a" and lines[0]["placed_ms"] <= lines[0]["ended_ms"]


def test_what_was_left_out_of_a_turn_is_kept_with_its_response(service: Service) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "name": "weather", "parameters": {}}]
    with opened(service, additional_headers={"x-request-id": "less"}) as socket:
        response = turn(socket, tools=tools)
    kept = service.client.get(f"/v1/responses/{response['id']}")
    assert "left out: tools[0] (web_search)" in kept.headers["warning"]
    line = service.client.get("/stats", params={"request": "less:1"}).json()
    assert line["warnings"] == [kept.headers["warning"]]


def test_a_turn_that_only_prepares(service: Service) -> None:
    with opened(service) as socket:
        prepared = turn(socket, input="Context", generate=False, instructions="Be brief.")
        assert prepared["output"] == []
        after = turn(socket, input="Now", previous_response_id=prepared["id"], **ECHO)
        assert text(after) == "user: Context|user: Now|"


def test_what_is_sent_at_once_is_answered_in_order(service: Service) -> None:
    with opened(service) as socket:
        for number in range(3):
            say(socket, input=f"Number {number}", stream_id=f"s{number}", **ECHO)
        for number in range(3):
            seen = events(socket)
            assert {event["stream_id"] for event in seen} == {f"s{number}"}
            assert text(seen[-1]["response"]) == f"user: Number {number}|"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "response.steer"}, "type"),
        ({"model": "a"}, "type"),
        ([], "type"),
        ({"type": "response.create", "input": "x"}, "model"),
        ({"type": "response.create", "model": "a"}, "input"),
        ({"type": "response.create", "model": "a", "input": "x", "background": True}, "background"),
        ({"type": "response.create", "model": "a", "input": "x", "temperature": 9}, "temperature"),
        ({"type": "response.create", "model": "nobody", "input": "x"}, "model"),
    ],
)
def test_errors_are_events_and_the_connection_goes_on(service: Service, message: Any, param: str) -> None:
    with opened(service) as socket:
        socket.send(json.dumps(message))
        (event,) = events(socket)
        assert event["type"] == "error" and event["status"] in (400, 404)
        assert event["error"]["param"] == param or event["error"]["code"] == "model_not_found"
        assert turn(socket, **ECHO)["status"] == "completed"


def test_what_is_no_json(service: Service) -> None:
    with opened(service) as socket:
        socket.send("{")
        assert events(socket)[0]["error"]["code"] == "invalid_json"


def test_a_failed_turn_is_forgotten_with_what_it_went_on_from(service: Service) -> None:
    with opened(service) as socket:
        first = turn(socket, store=False)
        worker = service.worker("a")
        assert worker is not None
        dies = {"chunks": 3, "interval_ms": 20, "die_after": 1, "generations": [worker["generation"]]}
        failed = turn(socket, store=False, previous_response_id=first["id"], fake=dies)
        assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
        lost = refusal(socket, previous_response_id=first["id"])
        assert lost["error"]["code"] == "previous_response_not_found"


def test_a_client_that_leaves_stops_its_turn(service: Service) -> None:
    with opened(service) as socket:
        say(socket, fake={"chunks": 10_000, "interval_ms": 10})
        created = json.loads(socket.recv(timeout=20))
    wait_until(lambda: (service.worker("a") or {})["in_flight"] == 0, "the worker goes on")
    kept = service.client.get(f"/v1/responses/{created['response']['id']}").json()
    assert kept["status"] == "cancelled"


def test_who_may_connect(service: Service) -> None:
    with pytest.raises(InvalidStatus) as caught, opened(service, origin="https://evil.example"):
        pass
    assert caught.value.response.status_code == 403
    with opened(service, origin=service.url) as socket:
        assert turn(socket)["status"] == "completed"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "8"}, 426),
    ],
)
def test_bad_handshakes(service: Service, headers: dict[str, str], status: int) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", **headers}
    assert service.client.get("/v1/responses", headers=upgrade).status_code == status


def test_frames_that_are_none_of_ours(service: Service) -> None:
    with opened(service) as socket:
        socket.ping().wait(5)
        socket.send(b"bytes")
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=20)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1003


def test_a_message_that_is_too_big_and_a_server_that_stops(tmp_path: Path) -> None:
    config = "[server]\nmax_body = 2048\n" + models_config(a=write_fake_model(tmp_path / "a"))
    with Service(tmp_path / "home", fake=True, config=config) as service:
        with opened(service) as socket:
            socket.send("x" * 4096)
            with pytest.raises(ConnectionClosed) as caught:
                socket.recv(timeout=20)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
        with opened(service) as socket:
            turn(socket)
            service.stop()
            with pytest.raises(ConnectionClosed) as caught:
                socket.recv(timeout=20)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1001

"""What a worker answers, asked through a running supervisor: every route, and settings that act."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fixtures.harness import Json, Service, events
from tests.fixtures.models import models_config
from tests.fixtures.thinker import write_thinker
from tests.fixtures.tiny import Tiny, write_tiny
from tests.fixtures.wrong_fields import wrong_bodies
from worker.api.chat_wire import ChatAsked
from worker.api.completions_wire import CompletionAsked
from worker.api.decisions import DecisionsAsked
from worker.api.embeddings import EmbeddingsAsked
from worker.api.messages_wire import CountAsked, MessagesAsked
from worker.api.responses_wire import Extras
from worker.api.systemone import SystemOneAsked

SYSTEM = {"role": "system", "content": "Answer as a pirate would. " * 8}
SETTINGS = """
[memory]
prompt_cache = "48MiB"
saved_state = "5MiB"

[defaults]
thinking = false
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("apis")
    vectors = write_tiny(base / "vectors", Tiny(context=512))
    (vectors / "modules.json").write_text("[]")
    models = models_config(tiny=write_thinker(base / "tiny"), vectors=vectors)
    with Service(base / "home", config=SETTINGS + models, arguments=("--no-spare",)) as service:
        yield service


def post(
    service: Service, path: str, *, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    return service.client.post(path, json={"model": "tiny", **body}, headers=headers)


def answer(service: Service, path: str, **body: Any) -> Json:
    response = post(service, path, **body)
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


def complete(service: Service, **body: Any) -> Json:
    return answer(service, "/v1/completions", **{"max_tokens": 6, "temperature": 0, **body})


def kept(service: Service, model: str = "tiny") -> Json:
    """The counters of a worker's prompt cache, once it has put away what it answered."""
    worker = service.worker(model)
    assert worker is not None
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=worker["socket"], verify=False), base_url="http://w"
    ) as client:
        client.post("/admin/memory/trim", json={"bytes": 0})
        found: Json = client.get("/admin/cache").json()
        return found


def test_text_completions_of_texts_and_tokens(service: Service) -> None:
    one = complete(service, prompt="Hello")
    (choice,) = one["choices"]
    assert one["object"] == "text_completion" and one["model"] == "tiny"
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert len(choice["text"]) == 6
    assert one["usage"]["prompt_tokens"] == 5 and one["usage"]["completion_tokens"] == 6
    tokens = list(b"Hello")
    assert complete(service, prompt=tokens)["choices"] == one["choices"]
    for prompts in (["Hello", "there"], [tokens, list(b"there")]):
        many = complete(service, prompt=prompts)
        assert [entry["index"] for entry in many["choices"]] == [0, 1]
        assert many["choices"][0] == choice
        assert many["usage"]["prompt_tokens"] == 10


def test_text_completions_with_echo_several_answers_and_log_probabilities(service: Service) -> None:
    body = complete(service, prompt="Hello", echo=True, n=2, logprobs=2, temperature=1, seed=5)
    assert [entry["index"] for entry in body["choices"]] == [0, 1]
    assert body["choices"][0]["text"] != body["choices"][1]["text"]
    for choice in body["choices"]:
        logprobs = choice["logprobs"]
        assert choice["text"].startswith("Hello") and len(choice["text"]) == 11
        assert logprobs["token_logprobs"][0] is None
        assert len(logprobs["tokens"]) == 11
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        assert all(len(top) in (2, 3) for top in logprobs["top_logprobs"][1:])
        assert logprobs["text_offset"] == list(range(11))
    # The prompt is computed once for both.
    assert body["usage"]["prompt_tokens"] == 5 and body["usage"]["completion_tokens"] == 12
    scored = complete(service, prompt="Hello", echo=True, logprobs=2, max_tokens=0)
    assert scored["choices"][0]["text"] == "Hello"
    first = body["choices"][0]["logprobs"]["token_logprobs"][1:5]
    assert scored["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(first, abs=1e-5)


def test_text_completions_stream(service: Service) -> None:
    whole = complete(service, prompt="Hello", logprobs=0)["choices"][0]
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 6, "temperature": 0, "logprobs": 0}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with service.client.stream("POST", "/v1/completions", json={**body, **options}) as response:
        assert response.status_code == 200
        *chunks, last, done = events(response)
    assert done == "[DONE]"
    parts = [chunk["choices"][0] for chunk in chunks if isinstance(chunk, dict)]
    assert "".join(part["text"] for part in parts) == whole["text"]
    tokens = [token for part in parts if part["logprobs"] for token in part["logprobs"]["tokens"]]
    assert tokens == whole["logprobs"]["tokens"]
    assert parts[-1]["finish_reason"] == "length"
    assert isinstance(last, dict) and last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/completions", {"prompt": [1, "x"]}, "prompt"),
        ("/v1/completions", {"prompt": [999]}, "prompt"),
        ("/v1/embeddings", {"model": "vectors", "input": []}, "input"),
        ("/v1/decisions", {"input": "x", "questions": []}, "questions"),
        ("/v1/systemone", {"state": "", "questions": {"a": {"type": "noul", "instructions": "x"}}}, "state"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [SYSTEM], "functions": [{"name": ""}]}, "functions[0].name"),
    ],
)
def test_what_is_wrong_is_named(service: Service, path: str, body: Json, param: str) -> None:
    response = post(service, path, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("path", "kind", "base"),
    [
        ("/v1/chat/completions", ChatAsked, {"messages": [USER]}),
        ("/v1/completions", CompletionAsked, {"prompt": "x"}),
        ("/v1/embeddings", EmbeddingsAsked, {"model": "vectors", "input": "x"}),
        ("/v1/messages", MessagesAsked, {"messages": [USER], "max_tokens": 1}),
        ("/v1/messages/count_tokens", CountAsked, {"messages": [USER]}),
        ("/v1/responses", Extras, {"input": "x"}),
        ("/v1/responses/input_tokens", Extras, {"input": "x"}),
        ("/v1/decisions", DecisionsAsked, {}),
        ("/v1/systemone", SystemOneAsked, {}),
    ],
)
def test_each_field_is_named_in_the_shape_of_its_api(
    service: Service, path: str, kind: type, base: Json
) -> None:
    """One fault of each; `test_wrong_fields` has them all."""
    seen: set[str] = set()
    for param, body in wrong_bodies(kind, base):
        field = param.partition(".")[0].partition("[")[0]
        if field in seen:
            continue
        seen.add(field)
        response = post(service, path, **body)
        told = response.json()
        assert response.status_code == 400, (body, told)
        assert (told["error"]["type"], told["error"]["param"]) == ("invalid_request_error", param)
        assert ("type" in told) is ("request_id" in told) is path.startswith("/v1/messages")
    assert len(seen) >= len(kind.__annotations__)


def test_embeddings(service: Service) -> None:
    body = answer(service, "/v1/embeddings", model="vectors", input=["Hello", list(b"Hello"), "Else"])
    hello, same, other = (entry["embedding"] for entry in body["data"])
    assert hello == pytest.approx(same, abs=1e-5) and hello != pytest.approx(other, abs=1e-2)
    assert body["model"] == "vectors" and body["usage"]["prompt_tokens"] == 14
    refused = post(service, "/v1/embeddings", input="Hello")
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "unsupported")


def test_the_list_of_models_says_what_each_can(service: Service) -> None:
    answer(service, "/v1/embeddings", model="vectors", input="Hello")
    complete(service, prompt="Hello")
    cards = {card["id"]: card for card in service.client.get("/v1/models").json()["data"]}
    assert cards["vectors"]["capabilities"] == ["embeddings"]
    talks = {
        "chat",
        "completions",
        "messages",
        "responses",
        "decisions",
        "tools",
        "structured_output",
        "thinking",
    }
    assert set(cards["tiny"]["capabilities"]) == talks
    assert service.client.get("/v1/models/tiny").json() == cards["tiny"]


def test_decisions_in_both_shapes(service: Service) -> None:
    material = "It was a wet day in a wet week. " * 4
    predicate = {"type": "predicate", "instructions": "It rains."}
    body = answer(service, "/v1/decisions", input=material, questions=[predicate, predicate])
    first, second = (entry["probability"] for entry in body["answers"])
    assert 0 <= first <= 1 and first == pytest.approx(second, abs=1e-5)
    assert body["usage"]["output_tokens"] == 0
    noul = {"type": "noul", "instructions": "It rains."}
    same = answer(service, "/v1/systemone", state=material, questions={"wet": noul})
    assert same["answers"]["wet"]["noul"] == pytest.approx(first, abs=1e-4)
    # The material was read for the first.
    assert same["usage"]["input_tokens_details"]["cached_tokens"] > len(material)


@pytest.mark.parametrize(
    "how",
    ["session_id", "prompt_cache_key", "x-session-affinity", "x-session-id", "session_id header"],
)
def test_a_conversation_is_known_by_its_session(service: Service, how: str) -> None:
    before = kept(service)["session_hits"] if service.worker("tiny") else 0
    name = how.removesuffix(" header")
    in_head = how.startswith("x-") or how.endswith("header")
    headers = {name: f"conversation of {how}"} if in_head else None
    fields = {} if in_head else {name: f"conversation of {how}"}
    messages = [SYSTEM, {"role": "user", "content": f"Where is the treasure of {how}?"}]
    for _ in range(2):
        response = post(
            service, "/v1/chat/completions", headers=headers, messages=messages, max_tokens=4, **fields
        )
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": "And?"},
        ]
    assert kept(service)["session_hits"] == before + 1


def test_the_settings_reach_the_worker_and_act(service: Service) -> None:
    body: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    silent = answer(service, "/v1/chat/completions", **body)["choices"][0]["message"]
    asked = answer(service, "/v1/chat/completions", **body, reasoning_effort="low")["choices"][0]["message"]
    assert len(silent["content"]) == 8 and "reasoning_content" not in silent
    assert len(asked["reasoning_content"]) == 8 and not asked["content"]
    found = kept(service)
    assert found["limit_bytes"] == 48 * 2**20
    assert found["saved"]["limit_bytes"] == 5 * 2**20


def test_what_is_not_enforced_is_said_in_a_header(service: Service) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}
    response = post(
        service,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=4,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": False},
        },
    )
    assert response.status_code == 200, response.text
    warning = response.headers["warning"]
    assert "not enforced" in warning and "https://example.com/schema.json" in warning
    # What the library made of the schema is nothing that the client wrote.
    assert "start:" not in warning and "x-guidance" not in warning


def test_functions_of_older_clients(service: Service) -> None:
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    body = answer(
        service,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hi"}],
        functions=[{"name": "now", "parameters": parameters}],
        function_call={"name": "now"},
        max_tokens=60,
    )
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "now", "arguments": "{}"}

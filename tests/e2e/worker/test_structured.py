"""Answers that have to look as the request says, from a model that says nothing sensible by itself."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.worker.serving import Json, content, serving
from tests.fixtures.tiny import Tiny
from tests.unit.constraints.validate import problem

SPEAKS = Tiny("qwen3", speaks="all")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "points": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "size", "points"],
    "additionalProperties": False,
}


def schema_format(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **more}}


async def test_an_answer_conforms_to_its_schema_streamed_and_not() -> None:
    fields: Json = {"response_format": schema_format(strict=True), "max_tokens": 200}
    async with serving(SPEAKS) as worker:
        body = await worker.answer(**fields)
        async with worker.stream(**fields) as stream:
            events = [event async for event in stream]
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert problem(json.loads(choice["message"]["content"]), SCHEMA) is None
    assert content(events) == choice["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[0-9]{5}"}, "[0-9]{5}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_json": {"type": "integer", "minimum": 0, "maximum": 9}}, "[0-9]"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
        ({"guided_grammar": 'root ::= "a" [0-9] "b"'}, "a[0-9]b"),
        ({"structured_outputs": {"regex": "(ab){2}"}}, "abab"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"structured_outputs": {"json": {"const": 7}}}, "7"),
        ({"structured_outputs": {"grammar": 'start: "x" /[yz]/'}}, "x[yz]"),
        ({"response_format": {"type": "text"}}, "(?s).*"),
    ],
)
async def test_other_structures(fields: dict[str, Any], pattern: str) -> None:
    async with serving(SPEAKS) as worker:
        assert re.fullmatch(pattern, await worker.text(**fields)), fields


async def test_free_and_constrained_rows_run_in_one_batch() -> None:
    async with serving() as worker:
        free = [await worker.text(f"Free {n}", max_tokens=60) for n in range(3)]
        schema = {"response_format": schema_format(), "max_tokens": 200, "temperature": 1.0}
        together = await asyncio.gather(
            *(worker.text(f"Free {n}", max_tokens=60) for n in range(3)),
            *(worker.text(f"Bound {n}", **schema) for n in range(3)),
            worker.answer("Several", n=3, **schema),
        )
    assert together[:3] == free
    several = [choice["message"]["content"] for choice in together[6]["choices"]]  # type: ignore[index]
    for text in (*together[3:6], *several):
        assert isinstance(text, str)
        assert problem(json.loads(text), SCHEMA) is None


async def test_log_probabilities_of_a_constrained_answer_are_those_of_its_text() -> None:
    async with serving(SPEAKS) as worker:
        body = await worker.answer(guided_choice=["first", "second"], logprobs=True, top_logprobs=2)
    (choice,) = body["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
    assert all(token["logprob"] <= 0 for token in tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": schema_format({"type": "strin"}, strict=True)},
            "response_format.json_schema.schema.type",
        ),
        (
            {"response_format": schema_format({"type": "strin"})},
            "response_format.json_schema.schema.type",
        ),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"structured_outputs": {"html": True}}, "structured_outputs.html"),
    ],
)
async def test_what_can_not_be_used_is_refused_with_the_field(fields: dict[str, Any], param: str) -> None:
    async with serving(SPEAKS) as worker:
        response = await worker.chat(**fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        health = await worker.health()
        assert health["queued"] == 0 and health["in_flight"] == 0


async def test_a_schema_that_can_not_be_enforced_is_told_to_the_model_unless_it_is_strict() -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
    async with serving(SPEAKS) as worker:
        refused = await worker.chat(response_format=schema_format(schema, strict=True))
        whole = await worker.chat(response_format=schema_format(schema), max_tokens=50)
        plain = await worker.answer(max_tokens=50)
        async with worker.client.stream(
            "POST",
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 5,
                "stream": True,
                "response_format": schema_format(schema),
            },
        ) as streamed:
            await streamed.aread()
    assert refused.status_code == 400 and "uniqueItems" in refused.json()["error"]["message"]
    assert whole.status_code == 200
    for response in (whole, streamed):
        assert response.headers["warning"].startswith('199 mlx-supervisor "the schema of')
    assert whole.json()["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 50


async def test_text_completions_take_structures_too() -> None:
    body = {"prompt": ["One", "Two"], "guided_regex": "[a-c]{4}", "max_tokens": 20}
    async with serving(SPEAKS) as worker:
        response = await worker.client.post("/v1/completions", json=body)
        wrong = await worker.client.post("/v1/completions", json={**body, "guided_regex": "("})
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert len(texts) == 2 and all(re.fullmatch("[a-c]{4}", text) for text in texts)
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "guided_regex"


async def test_a_request_whose_client_leaves_while_it_waits_is_gone() -> None:
    wide = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "pattern": f"^[a-z]{{1,{n + 3}}}x$"} for n in range(150)},
    }
    async with serving(SPEAKS) as worker:
        request = asyncio.create_task(worker.chat(response_format=schema_format(wide)))
        await worker.until(lambda health: health["queued"] + health["in_flight"] > 0, "never began")
        request.cancel()
        await worker.until(lambda health: health["queued"] + health["in_flight"] == 0, "still there")


@pytest.mark.slow
async def test_a_real_model_fills_in_a_schema(starter: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
        "required": ["country", "capital"],
        "additionalProperties": False,
    }
    async with serving(directory=starter) as worker:
        text = await worker.text(
            "What is the capital of France? Answer as JSON.",
            response_format=schema_format(schema),
            max_tokens=60,
        )
    assert "Paris" in json.loads(text)["capital"]

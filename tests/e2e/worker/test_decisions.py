"""`/v1/decisions` and `/v1/systemone` as a client sees them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.decision import Decision

from tests.e2e.worker.serving import ENDLESS, Json, Worker, content, serving
from tests.fixtures.tiny import Tiny

LONG = Tiny(context=8192)
ONE_NOUL = {"wet": {"type": "noul", "instructions": "It rains."}}
PREDICATE = {"type": "predicate", "instructions": "It rains."}
CHOICE = {
    "type": "choice",
    "name": "colour",
    "instructions": "Which colour?",
    "choices": [{"value": "red"}, {"value": "green", "description": "like grass"}, {"value": True}],
}
SCORE = {
    "type": "score",
    "name": "heat",
    "instructions": "How hot?",
    "levels": [{"label": "cold"}, {"label": "warm", "description": "20 degrees"}, {"label": "hot"}],
}


async def decide(worker: Worker, body: Json, status: int = 200, path: str = "/v1/decisions") -> Json:
    response = await worker.client.post(path, json=body)
    assert response.status_code == status, response.text
    answer: Json = response.json()
    return answer


async def test_all_kinds_of_questions_are_answered_in_order() -> None:
    async with serving() as worker:
        body = await decide(
            worker, {"model": "tiny", "input": "A wet day.", "questions": [PREDICATE, CHOICE, SCORE]}
        )
    decision = Decision.model_validate(body, strict=True)
    assert [answer.type for answer in decision.answers] == ["predicate", "choice", "score"]
    predicate, choice, score = body["answers"]
    assert predicate["name"] is None
    assert 0 <= predicate["probability"] <= 1
    assert [entry["value"] for entry in choice["probabilities"]] == ["red", "green", True]
    assert [(entry["value"], entry["label"]) for entry in score["probabilities"]] == [
        (0, "cold"),
        (1, "warm"),
        (2, "hot"),
    ]
    for answer in (choice, score):
        shares = [entry["probability"] for entry in answer["probabilities"]]
        assert sum(shares) == pytest.approx(1)
        assert answer["confidence"] == pytest.approx((3 * max(shares) - 1) / 2)
    likeliest = max(choice["probabilities"], key=lambda entry: entry["probability"])
    assert choice["choice"] == likeliest["value"]
    assert score["score"] == pytest.approx(
        sum(entry["value"] * entry["probability"] for entry in score["probabilities"])
    )
    assert decision.usage.output_tokens == 0
    assert decision.usage.input_tokens == decision.usage.total_tokens > 0


async def test_material_that_was_read_before_is_not_read_again() -> None:
    material = "It was a wet day in a wet week. " * 8
    async with serving() as worker:
        first = await decide(worker, {"input": material, "questions": [PREDICATE, CHOICE]})
        again = await decide(worker, {"input": material, "questions": [PREDICATE, CHOICE]})
        other = await decide(worker, {"state": material, "questions": ONE_NOUL}, path="/v1/systemone")
        stats = (await worker.client.get("/admin/cache")).json()
    assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > len(material)
    assert other["usage"]["input_tokens_details"]["cached_tokens"] > len(material)
    assert again["usage"]["input_tokens"] == first["usage"]["input_tokens"]
    for one, two in zip(first["answers"], again["answers"], strict=True):
        assert flat(one) == pytest.approx(flat(two), abs=1e-5)
    assert (stats["hits"], stats["misses"]) == (2, 1)


async def test_questions_do_not_influence_each_other() -> None:
    async with serving() as worker:
        together = await decide(worker, {"input": "A wet day.", "questions": [PREDICATE, CHOICE, SCORE]})
        counted = 0
        for index, question in enumerate([PREDICATE, CHOICE, SCORE]):
            alone = await decide(worker, {"input": "A wet day.", "questions": [question]})
            counted += alone["usage"]["input_tokens"]
            assert flat(alone["answers"][0]) == pytest.approx(flat(together["answers"][index]), abs=1e-4)
        # What all have in common is computed once.
        assert together["usage"]["input_tokens"] < counted


def flat(answer: Json) -> list[float]:
    if answer["type"] == "predicate":
        return [answer["probability"]]
    return [entry["probability"] for entry in answer["probabilities"]]


async def test_system_one_names_its_answers() -> None:
    questions = {
        "wet": {"type": "noul", "instructions": "It rains.", "criteria": {"true": "Water falls."}},
        "colour": {"type": "choice", "instructions": {"question": "?"}, "criteria": {"red": None, "b": "x"}},
        "heat": {"type": "score", "instructions": "How hot?", "criteria": ["cold", "warm", "hot"]},
    }
    body = {"model": "tiny", "state": {"weather": ["wet", 7]}, "questions": questions}
    async with serving() as worker:
        answer = await decide(worker, body, path="/v1/systemone")
    assert list(answer["answers"]) == ["wet", "colour", "heat"]
    assert 0 <= answer["answers"]["wet"]["noul"] <= 1
    colour, heat = answer["answers"]["colour"], answer["answers"]["heat"]
    assert set(colour["probabilities"]) == {"red", "b"}
    assert colour["choice"] in ("red", "b")
    assert heat["legend"] == {"0": "cold", "1": "warm", "2": "hot"}
    assert 0 <= heat["score"] <= 2
    assert answer["usage"]["output_tokens"] == 0


async def test_255_options_and_no_more() -> None:
    options = [{"value": f"option {number}"} for number in range(256)]
    question = {"type": "choice", "instructions": "Which?", "choices": options[:255]}
    async with serving(context=None) as worker:
        refused = await decide(worker, {"input": "x", "questions": [question]}, 400)
        assert refused["error"]["code"] == "context_length_exceeded"
        options = [{"value": f"{number}"} for number in range(256)]
        question["choices"] = options[:255]
        body = await decide(worker, {"input": "x", "questions": [question]})
        assert len(body["answers"][0]["probabilities"]) == 255
        question["choices"] = options
        refused = await decide(worker, {"input": "x", "questions": [question]}, 400)
    assert refused["error"]["param"] == "questions[0].choices"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": [PREDICATE]}, "input"),
        ({"input": "", "questions": [PREDICATE]}, "input"),
        ({"input": "x", "questions": []}, "questions"),
        ({"input": "x", "questions": [PREDICATE] * 401}, "questions"),
        ({"input": "x", "questions": [{"type": "guess", "instructions": "?"}]}, "questions[0].type"),
        ({"input": "x", "questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions[0].choices"),
        (
            {"input": "x", "questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]},
            "questions[0].choices[1].value",
        ),
        (
            {"input": "x", "questions": [{**SCORE, "levels": [{"label": str(n)} for n in range(11)]}]},
            "questions[0].levels",
        ),
        ({"input": "x", "questions": [{**PREDICATE, "instructions": " "}]}, "questions[0].instructions"),
        ({"input": [{"role": "nobody", "content": "x"}], "questions": [PREDICATE]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}], "questions": [PREDICATE]},
            "input[0].content[0].type",
        ),
        (
            {
                "input": [{"type": "function_call_output", "call_id": "a", "output": "x"}],
                "questions": [PREDICATE],
            },
            "input[0].call_id",
        ),
        ({"input": "x" * 5000, "questions": [PREDICATE]}, "input"),
    ],
)
async def test_what_is_wrong_is_named(body: Json, param: str) -> None:
    async with serving() as worker:
        refused = await decide(worker, body, 400)
    assert refused["error"]["param"] == param


async def test_values_are_typed() -> None:
    question = {**CHOICE, "choices": [{"value": "true"}, {"value": True}, {"value": False}]}
    async with serving() as worker:
        body = await decide(worker, {"input": "x", "questions": [question]})
    values = [entry["value"] for entry in body["answers"][0]["probabilities"]]
    assert values == ["true", True, False]


async def test_a_conversation_with_calls_can_be_judged() -> None:
    conversation = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    async with serving() as worker:
        await decide(worker, {"input": conversation, "questions": [PREDICATE]})


async def test_running_rows_keep_running_meanwhile() -> None:
    questions = [PREDICATE, CHOICE] * 12
    async with serving(tiny=LONG) as worker, worker.stream(max_tokens=ENDLESS) as stream:
        await anext(stream)
        deciding = asyncio.create_task(decide(worker, {"input": "wet " * 100, "questions": questions}))
        during = ""
        while not deciding.done():
            during += content([await anext(stream)])
        assert len(deciding.result()["answers"]) == 24
        # A token after each of them, of which the last may still be on their way to us.
        assert len(during) >= 8


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with serving(tiny=LONG) as worker:
        body = {"input": "wet " * 500, "questions": [CHOICE] * 400}
        deciding = asyncio.create_task(decide(worker, body))
        await worker.until(lambda health: health["running"] == 1, "it runs")
        deciding.cancel()
        await asyncio.wait([deciding])
        await worker.until(lambda health: health["in_flight"] == 0, "its place is free")
        assert await worker.text()


async def test_a_lease_waits_for_decisions_and_decisions_for_a_lease() -> None:
    async with serving() as worker:
        async with worker.client.stream("POST", "/admin/lease") as lease:
            lines = lease.aiter_lines()
            await anext(lines)
            deciding = asyncio.create_task(decide(worker, {"input": "x", "questions": [PREDICATE]}))
            await worker.until(lambda health: health["queued"] == 1, "it waits")
        assert (await deciding)["answers"]


async def test_the_feed_tells_of_decisions() -> None:
    async with serving() as worker, worker.client.stream("GET", "/admin/events") as feed:
        lines = feed.aiter_lines()
        await anext(lines)
        await decide(worker, {"input": "x", "questions": [PREDICATE]})
        seen: list[Any] = []
        while not seen or seen[-1]["event"] != "finished":
            seen.append(json.loads(await anext(lines)))
    assert (seen[0]["event"], seen[0]["kind"]) == ("started", "decisions")
    assert seen[-1]["completion_tokens"] == 0


@pytest.mark.slow
async def test_a_real_model_tells_praise_from_complaint(starter: Path) -> None:
    choice = {
        "type": "choice",
        "instructions": "What is the sentiment?",
        "choices": [{"value": "negative"}, {"value": "positive"}],
    }

    async def positive(worker: Worker, text: str) -> float:
        body = await decide(worker, {"input": text, "questions": [choice]})
        share: float = body["answers"][0]["probabilities"][1]["probability"]
        return share

    async with serving(directory=starter) as worker:
        praise = await positive(worker, "I love this product, it is the best thing I ever bought!")
        complaint = await positive(worker, "This is awful. It broke after a day and I want my money back.")
    assert praise > complaint

"""`POST /v1/systemone`: named questions about one state.

The shape that several hosts of decision models share. A `noul` is the probability that something is true; a
score counts its levels from 0, and is the mean level.
"""

from typing import Any, Final

import msgspec
import orjson

from shared.errors import invalid
from worker.api.decisions import MAX_CHOICES, MAX_LEVELS, MAX_QUESTIONS, check_count, mean_level, usage
from worker.api.exchange import Exchange
from worker.api.session import session_of
from worker.api.validation import decode
from worker.decisions import Decisions, readable
from worker.text.questions import Option, Question, choice, confidence, score, statement

Content = str | dict[str, Any] | list[Any]

_MAX_NAME: Final = 256
"""Characters of a question's name."""


class TruthCriteria(msgspec.Struct, frozen=True):
    """What counts as true, and what as false."""

    true: str | None = None
    false: str | None = None


class WireNoul(msgspec.Struct, frozen=True, tag_field="type", tag="noul"):
    instructions: Content
    criteria: TruthCriteria | None = None


class WireChoice(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    """`criteria` are the options, each with what it means or null."""

    instructions: Content
    criteria: dict[str, Any]


class WireScore(msgspec.Struct, frozen=True, tag_field="type", tag="score"):
    """`criteria` are the levels, lowest first."""

    instructions: Content
    criteria: list[Content]


WireQuestion = WireNoul | WireChoice | WireScore


class SystemOneAsked(msgspec.Struct, frozen=True):
    state: Content
    questions: dict[str, WireQuestion]
    adapter: str | None = None
    session_id: str | None = None


class SystemOneRoute:
    """The route, for one loaded model."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), SystemOneAsked)
        state = readable(asked.state)
        if not state.strip():
            raise invalid("`state` must not be empty.", param="state")
        check_count(asked.questions, "questions", 1, MAX_QUESTIONS)
        questions = [_question(wire, name) for name, wire in asked.questions.items()]
        with exchange.while_connected():
            decided = await self._decisions.decide(
                state,
                questions,
                param="state",
                adapter=asked.adapter,
                session=session_of(asked.session_id, exchange),
            )
        answers = {
            name: _answer(wire, probabilities)
            for (name, wire), probabilities in zip(
                asked.questions.items(), decided.probabilities, strict=True
            )
        }
        body = {"model": self._decisions.model_id, "answers": answers, "usage": usage(decided)}
        await exchange.answer(200, orjson.dumps(body))


def _question(wire: WireQuestion, name: str) -> Question:
    if len(name) > _MAX_NAME:
        raise invalid(f"A name in `questions` may have {_MAX_NAME} characters.", param="questions")
    param = f"questions.{name}"
    instructions = readable(wire.instructions)
    if not instructions.strip():
        raise invalid(f"`{param}.instructions` must not be empty.", param=f"{param}.instructions")
    field = f"{param}.criteria"
    if isinstance(wire, WireNoul):
        criteria = wire.criteria or TruthCriteria()
        return statement(instructions, param, true=criteria.true, false=criteria.false)
    if isinstance(wire, WireChoice):
        check_count(wire.criteria, field, 2, MAX_CHOICES)
        options = [
            Option(key, None if meaning is None else readable(meaning))
            for key, meaning in wire.criteria.items()
        ]
        if not all(option.text.strip() for option in options):
            raise invalid(f"`{field}` has an option without a name.", param=field)
        return choice(instructions, options, param)
    check_count(wire.criteria, field, 2, MAX_LEVELS)
    levels = [Option(readable(level)) for level in wire.criteria]
    if not all(level.text.strip() for level in levels):
        raise invalid(f"`{field}` has an empty level.", param=field)
    return score(instructions, levels, param)


def _answer(wire: WireQuestion, probabilities: list[float]) -> dict[str, Any]:
    if isinstance(wire, WireNoul):
        return {"type": "noul", "noul": probabilities[0]}
    if isinstance(wire, WireChoice):
        named = dict(zip(wire.criteria, probabilities, strict=True))
        return {
            "type": "choice",
            "choice": max(named, key=lambda key: named[key]),
            "probabilities": named,
            "confidence": confidence(probabilities),
        }
    return {
        "type": "score",
        "score": mean_level(probabilities),
        "legend": {str(index): readable(level) for index, level in enumerate(wire.criteria)},
        "probabilities": {str(index): value for index, value in enumerate(probabilities)},
        "confidence": confidence(probabilities),
    }

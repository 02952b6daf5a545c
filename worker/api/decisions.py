"""`POST /v1/decisions`.

Source: OpenAI's API reference, "Create a decision", and the types of its Python SDK. A score is the mean
level, counted from 0.
"""

from typing import Any, Final

import msgspec
import orjson

from shared.errors import PublicError, invalid
from worker.api.exchange import Exchange
from worker.api.session import session_of
from worker.api.validation import decode
from worker.decisions import Decided, Decisions, readable
from worker.text.questions import Option, Question, choice, confidence, score, statement

MAX_QUESTIONS: Final = 400
MAX_CHOICES: Final = 255
MAX_LEVELS: Final = 10


class WirePart(msgspec.Struct, frozen=True):
    """A content part: `input_text`, `output_text`, `refusal` or `input_json`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    data: Any = None


Content = str | list[WirePart]


class WireItem(msgspec.Struct, frozen=True):
    """A message, a call, or what a call gave."""

    type: str = "message"
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None


class WirePredicate(msgspec.Struct, frozen=True, tag_field="type", tag="predicate"):
    instructions: Content
    name: str | None = None


class WireOption(msgspec.Struct, frozen=True):
    value: str | bool
    description: str | None = None


class WireChoice(msgspec.Struct, frozen=True, tag_field="type", tag="choice"):
    instructions: Content
    choices: list[WireOption]
    name: str | None = None


class WireLevel(msgspec.Struct, frozen=True):
    label: str
    description: str | None = None


class WireScore(msgspec.Struct, frozen=True, tag_field="type", tag="score"):
    instructions: Content
    levels: list[WireLevel]
    name: str | None = None


WireQuestion = WirePredicate | WireChoice | WireScore


class DecisionsAsked(msgspec.Struct, frozen=True):
    input: str | list[WireItem]
    questions: list[WireQuestion]
    adapter: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None


class DecisionsRoute:
    """The route, for one loaded model."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), DecisionsAsked)
        material = _material(asked.input)
        check_count(asked.questions, "questions", 1, MAX_QUESTIONS)
        questions = [_question(wire, f"questions[{i}]") for i, wire in enumerate(asked.questions)]
        with exchange.while_connected():
            decided = await self._decisions.decide(
                material,
                questions,
                param="input",
                adapter=asked.adapter,
                session=session_of(asked.session_id or asked.prompt_cache_key, exchange),
            )
        answers = [
            _answer(wire, probabilities)
            for wire, probabilities in zip(asked.questions, decided.probabilities, strict=True)
        ]
        body = {"model": self._decisions.model_id, "answers": answers, "usage": usage(decided)}
        await exchange.answer(200, orjson.dumps(body))


def check_count(values: Any, param: str, low: int, high: int) -> None:
    """Raises PublicError 400 unless there are so many."""
    if not low <= len(values) <= high:
        raise invalid(f"`{param}` must have {low} to {high} entries, not {len(values)}.", param=param)


def usage(decided: Decided) -> dict[str, Any]:
    """Nothing is generated, so no output is counted."""
    return {
        "input_tokens": decided.input_tokens,
        "input_tokens_details": {"cached_tokens": decided.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": decided.input_tokens,
    }


def _question(wire: WireQuestion, param: str) -> Question:
    instructions = _text(wire.instructions, f"{param}.instructions")
    if not instructions.strip():
        raise invalid(f"`{param}.instructions` must not be empty.", param=f"{param}.instructions")
    if isinstance(wire, WirePredicate):
        return statement(instructions, param)
    if isinstance(wire, WireScore):
        check_count(wire.levels, f"{param}.levels", 2, MAX_LEVELS)
        levels = [Option(level.label, level.description) for level in wire.levels]
        _check_texts([level.text for level in levels], f"{param}.levels", "label")
        return score(instructions, levels, param)
    check_count(wire.choices, f"{param}.choices", 2, MAX_CHOICES)
    values = [option.value for option in wire.choices]
    texts = [_written(value, values) for value in values]
    _check_texts(texts, f"{param}.choices", "value")
    options = [Option(text, option.description) for text, option in zip(texts, wire.choices, strict=True)]
    return choice(instructions, options, param)


def _written(value: str | bool, values: list[str | bool]) -> str:
    """An option as the model would write it; quotes tell the string from the boolean beside it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    boolean = {"true": True, "false": False}.get(value)
    return f'"{value}"' if any(other is boolean for other in values if isinstance(other, bool)) else value


def _check_texts(texts: list[str], param: str, name: str) -> None:
    seen: set[str] = set()
    for index, text in enumerate(texts):
        field = f"{param}[{index}].{name}"
        if not text.strip():
            raise invalid(f"`{field}` must not be empty.", param=field)
        if text in seen:
            raise invalid(f"`{field}` is there twice.", param=field)
        seen.add(text)


def _answer(wire: WireQuestion, probabilities: list[float]) -> dict[str, Any]:
    if isinstance(wire, WirePredicate):
        return {"type": "predicate", "name": wire.name, "probability": probabilities[0]}
    if isinstance(wire, WireChoice):
        best = probabilities.index(max(probabilities))
        return {
            "type": "choice",
            "name": wire.name,
            "choice": wire.choices[best].value,
            "confidence": confidence(probabilities),
            "probabilities": [
                {"value": option.value, "probability": probability}
                for option, probability in zip(wire.choices, probabilities, strict=True)
            ],
        }
    return {
        "type": "score",
        "name": wire.name,
        "score": mean_level(probabilities),
        "confidence": confidence(probabilities),
        "probabilities": [
            {"value": index, "label": level.label, "probability": probability}
            for index, (level, probability) in enumerate(zip(wire.levels, probabilities, strict=True))
        ],
    }


def mean_level(probabilities: list[float]) -> float:
    """Counted from 0."""
    return sum(level * probability for level, probability in enumerate(probabilities))


def _material(wire: str | list[WireItem]) -> str:
    if isinstance(wire, str):
        text = wire
    else:
        calls: set[str] = set()
        text = "\n\n".join(_item(item, f"input[{index}]", calls) for index, item in enumerate(wire))
    if not text.strip():
        raise invalid("`input` must not be empty.", param="input")
    return text


def _item(item: WireItem, param: str, calls: set[str]) -> str:
    match item.type:
        case "message":
            if item.role not in ("user", "assistant", "system", "developer"):
                raise invalid(
                    f"`{param}.role` must be user, assistant, system or developer.", param=f"{param}.role"
                )
            return f"{item.role}:\n{_text(_needed(item.content, f'{param}.content'), f'{param}.content')}"
        case "function_call" | "custom_tool_call":
            calls.add(_needed(item.call_id, f"{param}.call_id"))
            field = "arguments" if item.type == "function_call" else "input"
            said = _needed(getattr(item, field), f"{param}.{field}")
            return f"assistant calls {_needed(item.name, f'{param}.name')}:\n{said}"
        case "function_call_output" | "custom_tool_call_output":
            if _needed(item.call_id, f"{param}.call_id") not in calls:
                raise invalid(f"`{param}.call_id` names no call before it.", param=f"{param}.call_id")
            return f"result:\n{_text(_needed(item.output, f'{param}.output'), f'{param}.output')}"
    raise invalid(f"`{param}.type` {item.type[:40]!r} is not supported.", param=f"{param}.type")


def _needed(value: Any, param: str) -> Any:
    if value is None:
        raise invalid(f"`{param}` is required.", param=param, code="missing_required_parameter")
    return value


def _text(content: Content, param: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: WirePart, param: str) -> str:
    match part.type:
        case "input_text" | "output_text" | "text":
            return str(_needed(part.text, f"{param}.text"))
        case "refusal":
            return str(_needed(part.refusal, f"{param}.refusal"))
        case "input_json":
            return readable(_needed(part.data, f"{param}.data"))
        case "input_image":
            raise PublicError(400, "unsupported_value", "This model reads no images.", param=f"{param}.type")
    raise invalid(f"`{param}.type` {part.type[:40]!r} is not supported.", param=f"{param}.type")

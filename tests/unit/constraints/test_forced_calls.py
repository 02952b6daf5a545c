"""Forced calls: whatever a model says under the grammar of its family is a valid call, in its own syntax."""

import json
from typing import Any

import pytest

from shared.errors import PublicError
from tests.unit.constraints.validate import problem
from tests.unit.constraints.walks import END, Model, model, say, tool, walk
from tests.unit.text.replies import pieces_of, seen
from tests.unit.text.samples import FAMILIES
from worker.engine.constraint_masks import Masks
from worker.engine.constraint_tokens import Vocabulary
from worker.text.grammar.spec import Spec
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes
from worker.text.toolcalls.llama import LlamaJson

NODE = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9},
        "next": {"$ref": "#/$defs/node"}}, "required": ["id"]}  # fmt: skip

TOOLS: tuple[dict[str, Any], ...] = (
    tool(
        "get_weather",
        {
            "city": {"type": "string", "minLength": 1, "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "metric": {"type": "boolean"},
        },
        required=["city", "unit"],
    ),
    tool("get_time", {}),
    {"type": "function", "function": {"name": "ping"}},
    tool(
        "plan",
        {
            "when": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
            "places": {"type": "array", "items": {"enum": ["Oslo", "Paris"]}, "minItems": 1, "maxItems": 3},
            "route": {
                "type": "object",
                "properties": {
                    "by": {"const": "train"},
                    "limit": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "null"}]},
                },
                "required": ["by"],
            },
            "note": {"type": ["string", "null"], "maxLength": 12},
            "chain": {"$ref": "#/$defs/node"},
        },
        required=["when", "places", "route"],
        **{"$defs": {"node": NODE}},
    ),
)
SCHEMAS: dict[str, Any] = {t["function"]["name"]: t["function"].get("parameters", {}) for t in TOOLS}

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
# A format of all replies has its markers as tokens, or the model could not end its thinking by chance.
spelled = pytest.mark.parametrize(
    ("family", "tokens"),
    [(family, tokens) for tokens in (True, False) for family in FAMILIES if tokens or not family.always],
    ids=lambda value: value.__name__ if isinstance(value, type) else "tokens" if value else "letters",
)


def calls(model: Model, spec: Spec, seed: int) -> list[tuple[str, Any]]:
    said = walk(model, model.control(spec), seed=seed)
    view = seen(pieces_of(model.dialect.splitter(TOOLS), model.stream(said)))
    assert not view.flagged and not view.content.strip() and not view.voided, model.text(said)
    for name, arguments in view.calls:
        assert problem(arguments, {"type": "object", **SCHEMAS[name]}) is None, model.text(said)
    return view.calls


@spelled
def test_whatever_is_said_is_one_valid_call(family: type[Family], tokens: bool) -> None:
    forced = model(family, tokens).dialect.forced_calls(TOOLS, many=False)
    made = [calls(model(family, tokens), forced, seed) for seed in range(3)]
    assert all(len(call) == 1 for call in made)


@families
def test_a_named_tool_is_called(family: type[Family]) -> None:
    for name in ("ping", "plan"):
        forced = model(family).dialect.forced_calls(TOOLS, name=name, many=False)
        assert [called for called, _ in calls(model(family), forced, seed=1)] == [name]


@spelled
def test_several_calls_where_they_may_be_several(family: type[Family], tokens: bool) -> None:
    forced = model(family, tokens).dialect.forced_calls(TOOLS[1:3])
    # Ending or going on is a matter of chance: in forty replies some go on.
    several = any(len(calls(model(family, tokens), forced, seed)) > 1 for seed in range(40))
    # Harmony ends a reply with its call.
    assert several is (family is not Harmony)


def test_a_call_can_not_be_forced_without_tools_or_of_an_unknown_one() -> None:
    with pytest.raises(PublicError, match="without tools"):
        model(Hermes).dialect.forced_calls(())
    with pytest.raises(PublicError, match="no function named 'other'") as caught:
        model(Hermes).dialect.forced_calls(TOOLS, name="other")
    assert caught.value.param == "tool_choice.function.name"


def test_a_tool_with_a_schema_that_is_none_names_the_tool() -> None:
    with pytest.raises(PublicError) as caught:
        model(Hermes).dialect.forced_calls((tool("x", {"a": {"type": "strin"}}),))
    assert caught.value.param == "tools[0].function.parameters.properties.a.type"
    assert caught.value.status == 400


def test_keywords_that_can_not_be_enforced_do_not_keep_a_call_from_being_forced() -> None:
    odd = tool("x", {"a": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}})
    forced = model(Hermes).dialect.forced_calls((odd,), many=False)
    said = walk(model(Hermes), model(Hermes).control(forced), seed=3)
    view = seen(pieces_of(model(Hermes).dialect.splitter((odd,)), model(Hermes).stream(said)))
    assert view.calls[0][0] == "x"


ANSWER = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.mixes], ids=lambda family: family.__name__)
def test_a_model_may_call_or_give_its_structured_answer(family: type[Family]) -> None:
    language = model(family)
    spec = language.dialect.calls_or_answer(Spec("json_schema", json.dumps(ANSWER)), TOOLS[1:2])
    ways = set()
    for seed in range(40):
        said = walk(language, language.control(spec), seed=seed)
        view = seen(pieces_of(language.dialect.splitter(TOOLS), language.stream(said)))
        if view.calls:
            assert {name for name, _ in view.calls} == {"get_time"} and not view.content.strip()
        else:
            assert problem(json.loads(view.content), ANSWER) is None
        ways.add(bool(view.calls))
        if len(ways) == 2:
            return
    raise AssertionError(f"only one way in forty replies: {ways}")


def test_calls_without_marks_leave_the_answer_alone() -> None:
    language = model(LlamaJson)
    spec = Spec("json_schema", json.dumps(ANSWER))
    assert language.dialect.calls_or_answer(spec, TOOLS) == language.dialect.answer(spec)


def test_harmony_may_think_before_a_forced_call() -> None:
    forced = model(Harmony).dialect.forced_calls(TOOLS, name="get_time")
    control = model(Harmony).control(forced)
    say(control, model(Harmony), "<|channel|>analysis<|message|>Time, then.<|end|><|start|>assistant")
    say(
        control,
        model(Harmony),
        "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>",
    )
    assert model(Harmony).allowed(control) == [END]


def test_a_call_that_ends_with_an_end_token() -> None:
    """gpt-oss names `<|call|>` among its end tokens: the grammar wants it once, and then it is over."""
    language = Model(Harmony)
    call, over = (language.tokenizer.vocabulary[marker] for marker in ("<|call|>", "<|return|>"))
    language.vocabulary = Vocabulary(language.tokenizer, width=300, end_tokens=[call, over])
    language.masks = Masks(language.vocabulary)
    control = language.control(language.dialect.forced_calls(TOOLS, name="get_time"))
    say(control, language, "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}")
    assert language.allowed(control) == [call]
    control.advance(call)
    assert control.accepting and control.failure is None

"""Structured output: whatever a model says conforms; what can't be asked for is refused with the reason."""

import json
import re
from typing import Any

import pytest

from shared.errors import PublicError
from tests.unit.constraints.validate import problem
from tests.unit.constraints.walks import END, Model, allows, model, say, walk
from tests.unit.text.replies import pieces_of, seen
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import Prepared, compile_spec
from worker.text.grammar.spec import Spec, spec_of
from worker.text.toolcalls.harmony import Harmony

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}
DIGITS = {"type": "array", "maxItems": 2, "items": {"type": "integer", "minimum": 0, "maximum": 9}}
ROWS = {"type": "array", "minItems": 1, "maxItems": 3, "items": DIGITS}
MATRIX = {"type": "array", "minItems": 2, "maxItems": 2, "items": ROWS}
TREE = {
    "type": "object",
    "properties": {
        "value": {"type": ["boolean", "null"]},
        "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    },
    "required": ["value"],
}
UNION = {"anyOf": [{"type": "object", "properties": {"kind": {"const": "x"}, "n": {"type": "boolean"}},
                    "required": ["kind", "n"]}, {"type": "string", "pattern": "^[a-f]{3}$"}]}  # fmt: skip


def schema(value: Any, *, strict: bool = True) -> Spec:
    spec = spec_of(
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": value, "strict": strict},
            }
        }
    )
    assert spec is not None
    return spec


def compiled(spec: Spec) -> Prepared:
    return compile_spec(spec, model().vocabulary)


@pytest.mark.parametrize("wanted", [PERSON, MATRIX, TREE, UNION], ids=["person", "matrix", "tree", "union"])
def test_whatever_is_said_conforms_to_the_schema(wanted: dict[str, Any]) -> None:
    spec = schema(wanted)
    for seed in range(15):
        text = model().text(walk(model(), model().control(spec), seed=seed))
        assert problem(json.loads(text), wanted) is None, text


def test_objects_are_closed_unless_they_say_otherwise() -> None:
    assert not allows(model(), schema({"type": "object", "properties": {"a": {}}}), '{"b": 1}')
    assert allows(
        model(), schema({"type": "object", "properties": {"a": {}}, "additionalProperties": True}), '{"b": 1}'
    )
    assert allows(model(), schema({"type": "object"}), '{"b": 1}')
    parts = {
        "allOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]
    }
    assert allows(model(), schema(parts), '{"a": 1, "b": 2}')


def test_json_may_be_on_one_line_or_indented_but_its_spaces_end() -> None:
    spec = schema(PERSON)
    for text in (
        '{"name":"a","age":1,"tags":["a"]}',
        '{"name": "a", "age": 1, "tags": ["a", "b"]}',
        '{\n  "name": "a",\n  "age": 1,\n  "tags": [\n    "a"\n  ]\n}',
        '{\n\t"name": "a",\n\t"age": 1,\n\t"tags": ["a"]\n}',
    ):
        assert allows(model(), spec, text)
    assert not allows(model(), spec, '{\n\n\n"name": "a", "age": 1, "tags": ["a"]}')
    assert not allows(model(), spec, '{"name":   "a", "age": 1, "tags": ["a"]}')


def test_any_object_is_one_object() -> None:
    spec = spec_of({"response_format": {"type": "json_object"}})
    assert spec is not None
    assert allows(model(), spec, '{"a": [1, {"b": null}]}')
    assert not allows(model(), spec, "[1]")
    assert spec_of({"structured_outputs": {"json_object": True}}) is not None


@pytest.mark.parametrize("pattern", [r"[0-9]{3}-(foo|bar)", r"a/b\/c", "x\ny", r"(yes|no)( [a-z]{2,4}){1,2}"])
def test_whatever_is_said_matches_the_regular_expression(pattern: str) -> None:
    spec = spec_of({"guided_regex": pattern})
    assert spec is not None
    for seed in range(10):
        text = model().text(walk(model(), model().control(spec), seed=seed))
        assert re.fullmatch(pattern, text), text


def test_a_choice_is_one_of_the_choices() -> None:
    choices = ['yes "quoted"', "no\nline", "é", "yes"]
    spec = spec_of({"guided_choice": choices})
    assert spec is not None
    said = {model().text(walk(model(), model().control(spec), seed=seed)) for seed in range(40)}
    assert said == set(choices)


def test_the_text_of_a_control_token_can_be_asked_for_in_letters() -> None:
    for fields, text in (
        ({"guided_choice": ["<think>", "b"]}, "<think>"),
        ({"guided_json": {"enum": ["x</think>"]}}, '"x</think>"'),
        ({"guided_regex": "a<think>b"}, "a<think>b"),
    ):
        spec = spec_of(fields)
        assert spec is not None
        control = model().control(spec)
        for byte in text.encode():
            assert byte in model().allowed(control)
            control.advance(byte)
        assert END in model().allowed(control)


@pytest.mark.parametrize(
    "grammar",
    ['start: "a" NUMBER ("," NUMBER)*\nNUMBER: /[0-9]/', 'root ::= "a" num ("," num)*\nnum ::= [0-9]'],
    ids=["lark", "gbnf"],
)
def test_a_grammar_in_either_notation(grammar: str) -> None:
    spec = spec_of({"structured_outputs": {"grammar": grammar}})
    assert spec is not None
    for seed in range(10):
        assert re.fullmatch("a[0-9](,[0-9])*", model().text(walk(model(), model().control(spec), seed=seed)))


def test_the_end_comes_only_when_the_answer_is_complete() -> None:
    control = model().control(
        schema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    )
    for character in '{"a":1}':
        assert END not in model().allowed(control)
        say(control, model(), character)
    assert model().allowed(control) == [END]
    assert control.accepting
    control.advance(END)
    assert control.failure is None and model().allowed(control) == [END]


def test_masks_are_as_wide_as_the_logits_and_never_allow_what_is_no_token() -> None:
    padded = Model(spare=1000)
    control = padded.control(schema({"type": "string"}))
    assert max(padded.allowed(control)) < padded.vocabulary.width - 1000
    assert padded.masks.fill([control]).shape == (1, (padded.vocabulary.width + 31) // 32)  # type: ignore[union-attr]


def test_logits_narrower_than_the_tokenizer() -> None:
    narrow = Vocabulary(model().tokenizer, width=200, end_tokens=[END])
    assert narrow.size > 200
    assert compile_spec(schema(PERSON), narrow).compiled is not None


def test_an_answer_of_harmony_is_its_final_message() -> None:
    harmony = model(Harmony)
    spec = schema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    for text in (
        '<|channel|>final<|message|>{"a":1}',
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"a":1}',
    ):
        control = harmony.control(spec)
        say(control, harmony, text)
        assert harmony.allowed(control) == [END]
    said = harmony.stream(walk(harmony, harmony.control(spec), seed=2))
    assert json.loads(seen(pieces_of(harmony.dialect.splitter(), said)).content) == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"guided_regex": "[a-z"}, "guided_regex", "unclosed character class"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_grammar": "start: foo"}, "guided_grammar", 'unknown name: "foo"'),
        ({"guided_grammar": "no grammar at all"}, "guided_grammar", "grammar"),
        ({"guided_json": '{"type": '}, "guided_json", "not JSON"),
        ({"guided_json": "[]"}, "guided_json", "JSON object"),
        ({"guided_json": {"type": "object", "not": {}}}, "guided_json", 'Unimplemented keys: ["not"]'),
        ({"guided_json": {"minimum": 3, "maximum": 1, "type": "integer"}}, "guided_json", "minimum (3)"),
        ({"guided_json": {"$ref": "#/$defs/x"}}, "guided_json", "does not exist"),
        ({"guided_json": {"type": "strin"}}, "guided_json.type", "'strin' is not a JSON type"),
        ({"guided_json": {"properties": {"a": {"items": 3}}}}, "guided_json.properties.a.items", "boolean"),
        ({"guided_json": {"enum": []}}, "guided_json.enum", "at least one"),
    ],
)
def test_what_is_invalid_is_refused_with_the_reason(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(PublicError) as caught:
        spec = spec_of(fields)
        assert spec is not None
        compiled(spec)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 70_000}, "guided_regex"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
    ],
)
def test_a_malformed_request_names_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PublicError) as caught:
        spec_of(fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_request_for_plain_text_asks_for_nothing() -> None:
    assert spec_of({}) is None
    assert spec_of({"response_format": {"type": "text"}, "guided_json": None}) is None


def test_schemas_are_bounded() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    for value, reason in (
        (deep, "nested more than 64"),
        ({"enum": [str(number) for number in range(2001)]}, "2000 values"),
        ({"properties": {str(number): {} for number in range(1001)}}, "1000 properties"),
        ({"description": "a" * 300_000}, "256 KiB"),
    ):
        with pytest.raises(PublicError, match=reason):
            compiled(schema(value))


def test_a_loose_schema_that_can_not_be_enforced_in_full_warns_and_is_put_into_words() -> None:
    prepared = compiled(
        schema({"type": "array", "items": {"enum": ["é", 2]}, "uniqueItems": True}, strict=False)
    )
    assert prepared.compiled is not None
    assert prepared.warning is not None and prepared.warning.startswith('199 mlx-supervisor "')
    assert "only in part" in prepared.warning and "uniqueItems" in prepared.warning
    assert prepared.warning.isascii() and prepared.warning.count('"') == 2
    assert prepared.prompt is not None and '"uniqueItems":true' in prepared.prompt


def test_a_loose_schema_that_can_not_be_compiled_at_all_is_only_put_into_words() -> None:
    prepared = compiled(schema({"type": "string", "pattern": "(?=a)b"}, strict=False))
    assert prepared.compiled is None
    assert prepared.warning is not None and "is not enforced" in prepared.warning
    assert prepared.prompt is not None


def test_a_loose_schema_that_is_none_is_refused_all_the_same() -> None:
    with pytest.raises(PublicError, match="not a JSON type"):
        compiled(schema({"type": "strin"}, strict=False))

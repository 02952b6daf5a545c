"""Constrained rows in a running batch of mlx-lm, on a tiny random model."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from tests.fixtures.tiny import IM_END, Tiny, tiny_model
from tests.unit.constraints.validate import problem
from tests.unit.constraints.walks import tool
from tests.unit.text.replies import pieces_of, seen
from worker.engine.constraint_masks import Masks
from worker.engine.constraint_rows import Control
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import compile_spec
from worker.engine.generator import RowGenerator
from worker.text.detokenize import Detokenizers
from worker.text.dialect import Dialect
from worker.text.grammar.spec import Spec
from worker.text.toolcalls.hermes import Hermes

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "points": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "size", "points"],
}
JSON = Spec("json_schema", json.dumps(SCHEMA))
DIGITS = Spec("regex", "[0-9]{5}")
PROMPTS = ([1, 2, 3], [104, 101, 108, 108, 111], [70] * 9, [33, 44])


class Loaded:
    def __init__(self) -> None:
        self.network, self.tokenizer = load(str(tiny_model(Tiny("qwen3", thinking=True, speaks="all"))))
        self.vocabulary = Vocabulary(self.tokenizer, width=263, end_tokens=self.tokenizer.eos_token_ids)
        self.masks = Masks(self.vocabulary)
        self.dialect = Dialect.of(self.tokenizer.get_vocab(), Hermes, None, self.tokenizer.encode)

    def control(self, spec: Spec) -> Control:
        prepared = compile_spec(spec, self.vocabulary)
        assert prepared.compiled is not None
        return prepared.compiled.control(self.masks)


@cache
def loaded() -> Loaded:
    return Loaded()


def generate(
    rows: Sequence[tuple[list[int], list[Any]]],
    *,
    kind: type[Any] = RowGenerator,
    sampler: Any = None,
    most: int = 60,
) -> list[list[int]]:
    """What each row says, its end token left out. A row is a prompt and its logits processors."""
    generator = kind(
        loaded().network,
        stop_tokens=[[IM_END]],
        completion_batch_size=8,
        stream=mx.default_stream(mx.default_device()),
        sampler=sampler,
    )
    uids = generator.insert(
        [prompt for prompt, _ in rows],
        max_tokens=[most] * len(rows),
        logits_processors=[processors for _, processors in rows],
    )
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    running = set(uids)
    while running:
        for response in generator.next()[1]:
            if response.finish_reason != "stop":
                said[response.uid].append(response.token)
            if response.finish_reason is not None:
                running.discard(response.uid)
    generator.close()
    return [said[uid] for uid in uids]


def text(tokens: list[int]) -> str:
    return str(loaded().tokenizer.decode(tokens))


def test_constrained_rows_conform_and_free_rows_say_what_they_always_say() -> None:
    free = generate([(prompt, []) for prompt in PROMPTS])
    mixed = generate(
        [
            (PROMPTS[0], []),
            (PROMPTS[1], [loaded().control(JSON)]),
            (PROMPTS[2], []),
            (PROMPTS[3], [loaded().control(DIGITS)]),
        ]
    )
    assert (mixed[0], mixed[2]) == (free[0], free[2])
    assert problem(json.loads(text(mixed[1])), SCHEMA) is None
    assert len(mixed[3]) == 5 and text(mixed[3]).isdigit()


def test_a_row_alone_says_what_it_says_in_a_batch() -> None:
    alone = [generate([(prompt, [loaded().control(JSON)])])[0] for prompt in PROMPTS]
    assert generate([(prompt, [loaded().control(JSON)]) for prompt in PROMPTS]) == alone


def test_many_sampled_rows_conform() -> None:
    mx.random.seed(3)
    for _ in range(3):
        rows = [(prompt, [loaded().control(JSON)]) for prompt in PROMPTS * 2]
        for tokens in generate(rows, sampler=make_sampler(1.0), most=200):
            assert problem(json.loads(text(tokens)), SCHEMA) is None


def test_a_forced_call_of_a_random_model_is_valid() -> None:
    tools = (tool("set_size", SCHEMA["properties"], SCHEMA["required"]),)  # type: ignore[arg-type]
    forced = loaded().dialect.forced_calls(tools, many=False)
    mx.random.seed(5)
    rows = [(prompt, [loaded().control(forced)]) for prompt in PROMPTS]
    for tokens in generate(rows, sampler=make_sampler(1.0), most=300):
        detokenizer = Detokenizers(loaded().tokenizer).new()
        stream = [(token, detokenizer.push(token)) for token in tokens]
        view = seen(pieces_of(loaded().dialect.splitter(tools), stream))
        assert [name for name, _ in view.calls] == ["set_size"]
        assert problem(view.calls[0][1], SCHEMA) is None


def test_mlx_lms_own_generator_takes_a_control_as_a_logits_processor() -> None:
    rows = [(prompt, [loaded().control(JSON)] if index % 2 else []) for index, prompt in enumerate(PROMPTS)]
    again = [(prompt, [loaded().control(JSON)] if index % 2 else []) for index, prompt in enumerate(PROMPTS)]
    assert generate(rows, kind=BatchGenerator) == generate(again)


def test_other_processors_still_count() -> None:
    def rows() -> list[tuple[list[int], list[Any]]]:
        penalty = make_logits_processors(repetition_penalty=1.5, repetition_context_size=20)
        return [(PROMPTS[0], [*penalty]), (PROMPTS[1], [*penalty, loaded().control(JSON)]), (PROMPTS[2], [])]

    assert generate(rows()) == generate(rows(), kind=BatchGenerator)


def test_rows_that_join_later_and_rows_that_are_taken_out() -> None:
    generator = RowGenerator(
        loaded().network, stop_tokens=[[IM_END]], stream=mx.default_stream(mx.default_device())
    )
    (long, gone) = generator.insert(
        [PROMPTS[0], PROMPTS[1]], max_tokens=[40, 40], logits_processors=[[], [loaded().control(JSON)]]
    )
    said: dict[int, list[int]] = {long: [], gone: []}
    for _ in range(6):
        for response in generator.next()[1]:
            said[response.uid].append(response.token)
    generator.remove([gone])
    (late,) = generator.insert([PROMPTS[3]], max_tokens=[40], logits_processors=[[loaded().control(DIGITS)]])
    said[late] = []
    for _ in range(50):
        for response in generator.next()[1]:
            if response.token != IM_END:
                said[response.uid].append(response.token)
    assert text(said[late]).isdigit() and len(said[late]) == 5
    assert said[long] == generate([(PROMPTS[0], [])], most=40)[0]


def test_the_budget_of_a_row_closes_its_thinking() -> None:
    model = loaded()
    dialect = Dialect(model.tokenizer)
    gate = dialect.gate("<think>\n", model.vocabulary.bytes_of, budget=6)
    compiled = compile_spec(JSON, model.vocabulary).compiled
    assert compiled is not None
    (said,) = generate([(PROMPTS[0], [compiled.control(model.masks, gate)])], most=200)
    thought, _, answer = text(said).partition("</think>")
    assert len(thought.removesuffix("\n")) <= 6
    assert problem(json.loads(answer), SCHEMA) is None

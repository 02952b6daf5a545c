"""A row's control: thinking first, then the grammar; a budget that ends the thinking."""

import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from tests.unit.constraints.walks import END, Model, model, say
from worker.engine.constraint_masks import apply_anywhere
from worker.engine.constraint_rows import Control
from worker.engine.constraints import compile_spec
from worker.text.grammar.spec import Spec
from worker.text.thinking_gate import Gate
from worker.text.toolcalls.family import Plain
from worker.text.toolcalls.harmony import Harmony

ANSWER = Spec("choice", '["yes","no"]', param="guided_choice")


def gate(model: Model, *, opened: bool = False, budget: int | None = None) -> Gate:
    prompt = "<|im_start|>assistant\n" + "<think>\n" * opened
    found = model.dialect.gate(prompt, model.vocabulary.bytes_of, budget=budget)
    assert found is not None
    return found


def control(
    model: Model, spec: Spec | None = ANSWER, *, opened: bool = False, budget: int | None = None
) -> Control:
    door = gate(model, opened=opened, budget=budget)
    if spec is None:
        return Control(model.masks, gate=door)
    prepared = compile_spec(model.dialect.answer(spec), model.vocabulary)
    assert prepared.compiled is not None
    return prepared.compiled.control(model.masks, door)


def free(model: Model, row: Control) -> bool:
    return model.masks.fill([row]) is None


spelled = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])


@spelled
def test_the_grammar_waits_for_the_end_of_thinking_that_the_prompt_began(tokens: bool) -> None:
    language = model(Plain, tokens)
    row = control(language, opened=True)
    # Anything but the end: the answer is still to come.
    assert set(language.allowed(row)) == set(range(language.vocabulary.width)) - {END}
    say(row, language, "anything {at all}")
    say(row, language, "</think>")
    assert {language.text([token]) for token in language.allowed(row)} == {"y", "n", " ", "\t", "\r", "\n"}
    say(row, language, "\n\nyes")
    assert language.allowed(row) == [END]


@spelled
def test_a_model_may_think_first_or_answer_at_once(tokens: bool) -> None:
    language = model(Plain, tokens)
    row = control(language)
    say(row, language, "yes")
    assert language.allowed(row) == [END]
    row = control(language)
    say(row, language, "<think>")
    say(row, language, "let me see</think>no")
    assert language.allowed(row) == [END]


def test_a_marker_in_letters_is_finished_once_it_is_begun() -> None:
    language = model(Plain, False)
    row = control(language)
    say(row, language, "<")
    assert [language.text([token]) for token in language.allowed(row)] == ["t"]


def test_a_prompt_that_closed_its_thinking_leaves_none_to_follow() -> None:
    language = model()
    assert language.dialect.gate("<think>\n\n</think>\n\n", lambda token: b"") is None
    assert Model(thinking=None).dialect.gate("<think>", lambda token: b"") is None


def test_white_space_behind_thinking_is_bounded() -> None:
    language = model()
    row = control(language, opened=True)
    say(row, language, "</think>\n\n")
    assert {language.text([token]) for token in language.allowed(row)} == {"y", "n"}


@spelled
def test_a_budget_closes_the_block_and_the_answer_follows(tokens: bool) -> None:
    language = model(Plain, tokens)
    row = control(language, opened=True, budget=3)
    say(row, language, "abc")
    said = ""
    while row.forced is not None:
        assert language.allowed(row) == [row.forced]
        said += language.text([row.forced])
        row.advance(row.forced)
    assert said == "\n</think>\n\n"
    say(row, language, "no")
    assert language.allowed(row) == [END]


def test_a_budget_works_without_a_grammar() -> None:
    language = model()
    row = control(language, None, budget=2)
    assert free(language, row)
    say_freely(row, language, "<think>ab")
    assert spoken(row, language) == "\n</think>\n\n"
    assert free(language, row)


def test_a_budget_of_nothing_closes_at_once() -> None:
    row = control(model(), None, opened=True, budget=0)
    assert row.forced is not None


def test_thinking_within_the_budget_is_left_alone() -> None:
    language = model()
    row = control(language, None, opened=True, budget=5)
    say_freely(row, language, "abcd</think>answer that is longer")
    assert row.forced is None and free(language, row)


def test_harmony_over_its_budget_may_call_or_answer_and_then_has_to_answer() -> None:
    language = model(Harmony)
    row = control(language, None, budget=2)
    say_freely(row, language, "<|channel|>analysis<|message|>ab")
    assert spoken(row, language) == "<|end|><|start|>assistant"
    say_freely(row, language, "<|channel|>analysis<|message|>")
    assert spoken(row, language) == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert free(language, row)


def test_harmony_with_a_budget_and_a_grammar() -> None:
    language = model(Harmony)
    row = control(language, budget=2)
    say(row, language, "<|channel|>analysis<|message|>ab")
    assert spoken(row, language) == "<|end|><|start|>assistant"
    say(row, language, "<|channel|>final<|message|>yes")
    assert language.allowed(row) == [END]


def test_a_token_that_is_not_allowed_fails_the_row_and_lets_it_only_end() -> None:
    language = model()
    row = language.control(ANSWER)
    row.advance(ord("x"))
    assert row.failure is not None
    assert language.allowed(row) == [END]


def test_whether_a_row_failed_can_be_asked_while_its_grammar_is_at_work() -> None:
    """Replies ask on the event loop when they are over; the engine may be making their rows' next masks."""
    language = model()
    rows: list[Control | None] = [language.control(ANSWER) for _ in range(8)]
    over = threading.Event()

    def work() -> None:
        for _ in range(300):
            language.masks.fill(rows)
        over.set()

    with ThreadPoolExecutor(1) as engine:
        working = engine.submit(work)
        while not over.is_set():
            assert all(row is not None and row.failure is None for row in rows)
            if working.done():
                break
        working.result()


def test_masks_of_a_batch_do_not_mix() -> None:
    language = model()
    rows: list[Control | None] = [
        language.control(ANSWER),
        None,
        control(language, None),
        language.control(ANSWER),
    ]
    assert rows[3] is not None
    say(rows[3], language, "ye")
    rows += [language.control(Spec("regex", "[0-9]", param="x")) for _ in range(4)]
    bits = language.masks.fill(rows)
    assert bits is not None
    together = bits.copy()
    for index, row in enumerate(rows):
        alone = language.masks.fill([row])
        assert (together[index] == (-1 if alone is None else alone[0])).all()


def test_masks_are_applied_to_logits_of_any_precision() -> None:
    bits = np.array([[0b101, 0], [-1, 1]], np.int32)
    for kind in (mx.float32, mx.float16, mx.bfloat16):
        masked = apply_anywhere(mx.ones((2, 40), kind), bits)
        assert masked.dtype == kind and masked.shape == (2, 40)
        assert [sum(row) for row in (masked == 1).tolist()] == [2, 33]
        assert bool((masked[0, 3:] == -mx.inf).all().item())


def say_freely(row: Control, language: Model, text: str) -> None:
    for token in language.tokenizer.encode(text):
        row.advance(token)


def spoken(row: Control, language: Model) -> str:
    said = ""
    while row.forced is not None:
        said += language.text([row.forced])
        row.advance(row.forced)
    return said

"""Rows that stop for want of memory and go on later: they say what they would have said."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.worker.test_batch import GREEDY, alone, new_batch, row
from tests.unit.worker.test_prompt_reuse import FEW, networks, text
from worker.engine.batch import Batch
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Row
from worker.request import Sampling

__all__ = ["networks"]

TOKENS = 24


def first(wanted: Row, tokens: int) -> Row:
    """`wanted` as far as there is memory for so many tokens of its answer."""
    return replace(wanted, max_tokens=tokens, whole=len(wanted.prompt) + wanted.max_tokens)


def rest(wanted: Row, said: list[int], *, tokens: int | None = None) -> Row:
    """What is left of it."""
    left = wanted.max_tokens - len(said)
    return replace(
        wanted,
        prompt=[*wanted.prompt, *said],
        max_tokens=left if tokens is None else tokens,
        min_tokens=max(0, wanted.min_tokens - len(said)),
        said=len(said),
        whole=len(wanted.prompt) + wanted.max_tokens,
    )


def run(batch: Batch, wanted: Row, *, steps: int | None = None) -> list[int]:
    """Its tokens, up to the end or for so many steps that bring one."""
    batch.insert(wanted)
    said: list[int] = []
    while len(batch) and (steps is None or len(said) < steps):
        said += [output.token for output in batch.step()]
    return said


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(temperature=1.0, seed=7),
        Sampling(temperature=0.9, top_p=0.9, seed=3, repetition_penalty=1.3, frequency_penalty=0.5),
    ],
)
def test_a_row_goes_on_as_if_it_had_never_stopped(sampling: Sampling) -> None:
    wanted = replace(row(2, sampling, tokens=TOKENS), min_tokens=TOKENS)
    batch = new_batch(prompts=PromptCache(2**30))
    said = run(batch, first(wanted, 7))
    assert len(said) == 7
    said += run(batch, rest(wanted, said, tokens=5))
    said += run(batch, rest(wanted, said), steps=4)
    # And of one whose room was wanted by another.
    assert batch.remove(wanted.id)
    said += run(batch, rest(wanted, said))
    assert said == alone(wanted)


@pytest.mark.parametrize("kind", FEW)
def test_so_does_one_of_every_kind_of_state(networks: Any, kind: str) -> None:
    wanted = Row(0, text(1, 60), TOKENS, GREEDY, boundaries=(40,))
    whole = run(Batch(networks(kind), [], max_rows=8, prefill_step=64), wanted)
    prompts = PromptCache(2**30)
    batch = Batch(networks(kind), [], max_rows=8, prefill_step=64, prompts=prompts)
    said = run(batch, first(wanted, 9))
    assert run(batch, rest(wanted, said)) == whole[9:]


def test_a_row_that_is_allowed_more_in_time_does_not_stop() -> None:
    wanted = row(1, tokens=TOKENS)
    batch = new_batch()
    batch.insert(first(wanted, 6))
    said: list[int] = []
    while len(batch):
        said += [output.token for output in batch.step()]
        if len(said) == 4:
            batch.allow(wanted.id, len(wanted.prompt) + 15)
        elif len(said) == 12:
            batch.allow(wanted.id, len(wanted.prompt) + TOKENS)
    assert said == alone(wanted)
    batch.allow(wanted.id, 10**6)


def test_what_was_computed_waits_for_it_in_the_room_that_it_leaves() -> None:
    """The prompt cache alone would keep less than that."""
    wanted = row(3, tokens=TOKENS)
    prompts = PromptCache(1)
    batch = new_batch(prompts=prompts)
    said = run(batch, first(wanted, 8))
    batch.settle()
    assert len(prompts) == 1 and prompts.nbytes > prompts.limit_bytes
    batch.cached()
    assert prompts.counts.hits == 0
    said += run(batch, rest(wanted, said))
    assert prompts.counts.reused_tokens == len(wanted.prompt) + 7
    assert batch.cached() == [], "of its prompt it was told before"
    batch.settle()
    assert len(prompts) == 0 and said == alone(wanted)


def test_it_makes_way_where_that_room_is_needed() -> None:
    wanted = row(3, tokens=TOKENS)
    prompts = PromptCache(1)
    batch = new_batch(prompts=prompts)
    said = run(batch, first(wanted, 8))
    batch.settle()
    prompts.shrink(0)
    assert said + run(batch, rest(wanted, said)) == alone(wanted)


def test_one_that_ended_by_itself_leaves_no_more_than_is_kept() -> None:
    wanted = row(3, tokens=TOKENS)
    prompts = PromptCache(1)
    batch = new_batch(prompts=prompts)
    run(batch, first(wanted, TOKENS))
    run(batch, replace(first(wanted, TOKENS), id=9, stop_tokens=(alone(wanted)[3],)))
    batch.settle()
    assert len(prompts) == 0

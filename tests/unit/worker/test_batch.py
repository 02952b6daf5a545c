"""The batch on a real, tiny model: rows don't disturb each other."""

from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from shared.launch import Options
from tests.fixtures.tiny import Tiny, tiny_model
from worker.engine.batch import Batch
from worker.engine.rows import Row
from worker.engine.sampling import Samplers, key_words
from worker.model.loading import Model, load
from worker.request import Sampling

GREEDY = Sampling(temperature=0)
TINY = Tiny()


@cache
def loaded(tiny: Tiny) -> Model:
    return load(tiny_model(tiny), Options(), lambda _: None)


def new_batch(tiny: Tiny = TINY, **options: Any) -> Batch:
    model = loaded(tiny)
    return Batch(model.network, model.end_tokens, **{"max_rows": 8, "prefill_step": 64, **options})


def row(number: int, sampling: Sampling = GREEDY, *, length: int | None = None, tokens: int = 24) -> Row:
    prompt = [(7 * number + 3 * position) % 95 + 32 for position in range(length or 3 + 17 * number)]
    return Row(number, prompt, tokens, sampling)


def finish(batch: Batch) -> dict[int, list[int]]:
    """Run until the batch is empty; the tokens of every row."""
    tokens: dict[int, list[int]] = {}
    while len(batch):
        for output in batch.step():
            tokens.setdefault(output.row, []).append(output.token)
    return tokens


def alone(wanted: Row, **options: Any) -> list[int]:
    batch = new_batch(**options)
    batch.insert(wanted)
    return finish(batch)[wanted.id]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_batch_equals_alone_at_temperature_0(architecture: Any) -> None:
    tiny = Tiny(architecture=architecture)
    rows = [row(number) for number in range(6)]
    batch = new_batch(tiny)
    for wanted in rows:
        batch.insert(wanted)
    together = finish(batch)
    assert together == {wanted.id: alone(wanted, tiny=tiny) for wanted in rows}


def test_rows_that_join_and_leave_later_change_nothing() -> None:
    batch = new_batch()
    batch.insert(row(1, tokens=40))
    tokens: dict[int, list[int]] = {}

    def step(times: int) -> None:
        for _ in range(times):
            for output in batch.step():
                tokens.setdefault(output.row, []).append(output.token)

    step(6)
    batch.insert(row(5))
    batch.insert(row(2))
    step(4)
    assert batch.remove(5)
    step(80)
    assert not len(batch)
    assert tokens[1] == alone(row(1, tokens=40))
    assert tokens[2] == alone(row(2))


def test_equal_seeds_give_equal_tokens_alone_and_in_any_company() -> None:
    """Fault 42. mlx-lm's server takes seeded requests out of the batch for this."""
    seeded = row(3, Sampling(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, seed=7))
    expected = alone(seeded)
    batch = new_batch()
    batch.insert(row(1, Sampling(temperature=1.3)))
    batch.insert(row(2))
    batch.step()
    batch.insert(seeded)
    batch.insert(row(4, Sampling(temperature=1.0, seed=7)))
    assert finish(batch)[3] == expected
    assert alone(row(3, Sampling(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, seed=8))) != expected


def test_rows_without_a_seed_differ() -> None:
    """Fault 42: two equal requests in the same millisecond gave the same answer."""
    batch = new_batch()
    for number in range(4):
        batch.insert(Row(number, [40, 41, 42], 24, Sampling(temperature=1.0)))
    answers = finish(batch)
    assert len({tuple(tokens) for tokens in answers.values()}) == 4
    again = new_batch()
    again.insert(Row(0, [40, 41, 42], 24, Sampling(temperature=1.0)))
    assert finish(again)[0] not in answers.values()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=10**6),
        Sampling(temperature=1e-5),
        Sampling(temperature=2.0, top_p=0.0),
        Sampling(temperature=1.0, top_k=1, seed=3),
        Sampling(temperature=1e-4, seed=3),
        Sampling(temperature=1.0, min_p=1.0),
        Sampling(temperature=1.0, top_p=1e-9, min_p=1e-300, seed=1),
        Sampling(temperature=1.0, seed=-1),
        Sampling(temperature=1.0, top_k=10**6, seed=2**64 - 1),
    ],
)
def test_extreme_values_break_no_step(sampling: Sampling) -> None:
    tokens = alone(row(1, sampling))
    assert len(tokens) == 24
    if sampling.temperature < 1 or sampling.top_p < 0.1 or sampling.top_k == 1 or sampling.min_p == 1:
        assert tokens == alone(row(1))


def test_a_cancelled_row_is_gone_before_the_next_step() -> None:
    batch = new_batch()
    batch.insert(row(0, tokens=1000))
    batch.insert(row(1, tokens=1000))
    for _ in range(5):
        batch.step()
    assert batch.remove(0)
    assert len(batch) == 1
    assert {output.row for output in batch.step()} == {1}
    assert not batch.remove(0)


def test_a_row_is_cancelled_in_the_middle_of_its_prompt() -> None:
    batch = new_batch()
    batch.insert(row(1, tokens=1000))
    batch.step()
    batch.insert(row(2, length=1500))
    batch.step()
    assert batch.remove(2)
    assert {output.row for _ in range(5) for output in batch.step()} == {1}
    batch.insert(row(3))
    assert batch.remove(1)
    assert finish(batch)[3] == alone(row(3))


def test_a_long_prompt_lets_others_decode_between_its_chunks() -> None:
    batch = new_batch(prefill_step=32)
    batch.insert(row(1, tokens=1000))
    while not batch.step():
        pass
    batch.insert(row(2, length=640, tokens=2))
    steps = 0
    while all(output.row != 2 for output in batch.step()):
        steps += 1
    assert steps >= 640 / 32


def test_the_kv_cache_is_counted_and_freed() -> None:
    batch = new_batch()
    assert batch.kv_bytes == 0
    batch.insert(row(1, tokens=100))
    for _ in range(5):
        batch.step()
    assert batch.kv_bytes > 0
    batch.remove(1)
    assert batch.kv_bytes == 0


def test_a_reset_forgets_every_row_and_serves_new_ones() -> None:
    batch = new_batch()
    batch.insert(row(1))
    batch.insert(row(2))
    batch.step()
    assert sorted(batch.reset()) == [1, 2]
    assert not len(batch)
    batch.insert(row(3))
    assert finish(batch)[3] == alone(row(3))


def test_rows_that_want_the_same_share_a_sampler() -> None:
    """The batch is sampled in one call only when all its rows have the same object."""
    samplers = Samplers(vocabulary=263)
    assert samplers.of(Sampling(temperature=0.7, top_p=0.9)) is samplers.of(Sampling(0.7, 0.9))
    assert samplers.of(GREEDY) is samplers.of(Sampling(temperature=0, seed=3))
    assert samplers.of(Sampling(seed=3)) is not samplers.of(Sampling(seed=3))
    for number in range(1000):
        samplers.of(Sampling(temperature=0.5 + number / 1000))


def test_keys_of_seeds_and_positions_do_not_repeat() -> None:
    keys = {key_words(seed, position) for seed in range(-50, 50) for position in range(100)}
    assert len(keys) == 10_000
    assert key_words(-1, 0) == key_words(2**64 - 1, 0)


def test_a_seeded_draw_follows_the_distribution() -> None:
    logits = mx.log(mx.array([[0.7, 0.2, 0.1]]))
    counts = [0, 0, 0]
    for seed in range(600):
        counts[Samplers(vocabulary=3).of(Sampling(seed=seed))(logits).item()] += 1
    assert 360 < counts[0] < 480 and 70 < counts[1] < 170 and 25 < counts[2] < 100

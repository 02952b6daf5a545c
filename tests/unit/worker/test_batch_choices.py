"""What rows may ask for beside each other in one running batch, on a real, tiny model."""

from typing import Any

import mlx.core as mx
import pytest
from msgspec.structs import replace

from tests.fixtures.tiny import END_OF_TEXT, IM_END, Tiny
from tests.unit.worker.test_batch import GREEDY, TINY, alone, finish, loaded, new_batch, row
from worker.engine.batch import Batch
from worker.engine.processors import processors_of
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Output, Row
from worker.engine.sampling import OwnSampler, Samplers, apply_xtc, seed_of
from worker.request import Sampling

ENDS = Tiny(speaks="all", seed=3)
"""Ends by itself after a while."""

FEATURES: dict[str, Any] = {
    "bias": {"sampling": Sampling(temperature=0, logit_bias=((65, 3.0), (68, -100.0)))},
    "repetition": {"sampling": Sampling(temperature=0, repetition_penalty=1.5)},
    "presence": {"sampling": Sampling(temperature=0, presence_penalty=1.5, presence_context_size=5)},
    "frequency": {"sampling": Sampling(temperature=0, frequency_penalty=0.7, frequency_context_size=40)},
    "xtc": {"sampling": Sampling(temperature=1, seed=5, xtc_probability=0.5, xtc_threshold=0.05)},
    "all together": {
        "sampling": Sampling(
            temperature=0.9,
            seed=6,
            min_p=0.02,
            repetition_penalty=1.2,
            presence_penalty=0.2,
            frequency_penalty=0.2,
            logit_bias=((66, 1.0),),
        ),
        "min_tokens": 5,
        "stop_tokens": (70,),
    },
    "log probabilities": {"sampling": GREEDY, "logprobs": 3},
    "min tokens": {"sampling": GREEDY, "min_tokens": 20},
    "no end": {"sampling": GREEDY, "ignore_eos": True},
    "stop tokens": {"sampling": GREEDY, "stop_tokens": tuple(range(60, 75))},
}


def outputs(batch: Batch) -> dict[int, list[Output]]:
    found: dict[int, list[Output]] = {}
    while len(batch):
        for output in batch.step():
            found.setdefault(output.row, []).append(output)
    return found


@pytest.mark.parametrize("tiny", [TINY, ENDS], ids=["endless", "ends"])
def test_batch_equals_alone_with_every_feature(tiny: Tiny) -> None:
    rows = [
        replace(row(number % 5), id=number, **feature) for number, feature in enumerate(FEATURES.values())
    ]
    rows.append(row(len(rows)))
    batch = new_batch(tiny, max_rows=len(rows))
    for wanted in rows:
        batch.insert(wanted)
    together = finish(batch)
    for wanted, name in zip(rows, [*FEATURES, "none"], strict=True):
        assert together[wanted.id] == alone(wanted, tiny=tiny), name


@pytest.mark.parametrize("name", ["bias", "repetition", "presence", "frequency"])
def test_a_row_is_changed_by_what_it_asks_for(name: str) -> None:
    assert alone(replace(row(1), **FEATURES[name])) != alone(row(1))


def test_a_bias_of_100_wins_and_one_of_minus_100_bans() -> None:
    assert alone(row(1, Sampling(temperature=0, logit_bias=((90, 100.0),)))) == [90] * 24
    said = set(alone(row(1)))
    banned = Sampling(temperature=0, logit_bias=tuple((token, -100.0) for token in sorted(said)))
    assert not said & set(alone(row(1, banned)))


def test_where_everything_is_banned_something_is_said_all_the_same() -> None:
    """As when a grammar allows banned tokens only: infinities there made the step's numbers none."""
    everything = Sampling(temperature=0, logit_bias=tuple((token, -100.0) for token in range(263)))
    assert alone(row(1, everything)) == alone(row(1))


def test_repeated_tokens_are_penalised_once_or_each_time() -> None:
    context, logits = mx.array([1, 2, 2, 2]), mx.zeros((1, 4))
    (presence,) = processors_of(Sampling(presence_penalty=0.5))
    (frequency,) = processors_of(Sampling(frequency_penalty=0.5))
    (short,) = processors_of(Sampling(frequency_penalty=0.5, frequency_context_size=2))
    assert presence(context, mx.array(logits)).tolist() == [[0, -0.5, -0.5, 0]]
    assert frequency(context, mx.array(logits)).tolist() == [[0, -0.5, -1.5, 0]]
    assert short(context, mx.array(logits)).tolist() == [[0, 0, -1.0, 0]]
    assert processors_of(Sampling()) == []


def test_a_row_that_ends_by_itself_waits_for_its_least_tokens() -> None:
    natural = alone(row(2, tokens=200), tiny=ENDS)
    assert natural[-1] == IM_END and len(natural) < 150
    held = alone(replace(row(2, tokens=200), min_tokens=len(natural) + 10), tiny=ENDS)
    assert held[: len(natural) - 1] == natural[:-1]
    assert IM_END not in held[: len(natural) + 10]


def test_ignored_ends_end_nothing() -> None:
    natural = alone(row(2, tokens=200), tiny=ENDS)
    wanted = replace(row(2, tokens=len(natural) + 20), ignore_eos=True)
    on = alone(wanted, tiny=ENDS)
    assert on[: len(natural)] == natural and len(on) == len(natural) + 20


def test_a_stop_token_ends_the_row_with_it() -> None:
    natural = alone(row(1))
    stop = natural[7]
    batch = new_batch()
    batch.insert(replace(row(1), stop_tokens=(stop,)))
    batch.insert(row(2))
    found = outputs(batch)
    first = natural.index(stop)
    assert [output.token for output in found[1]] == natural[: first + 1]
    assert found[1][-1].finish == "stop"
    assert len(found[2]) == 24


def test_xtc_leaves_out_all_likely_tokens_but_the_last_and_never_the_spared() -> None:
    logprobs = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]]))
    sampling = Sampling(xtc_probability=0.5, xtc_threshold=0.15)
    draws = mx.array([[0.4], [0.6]])
    none, first = mx.array([False] * 4), mx.array([True, False, False, False])
    kept = (apply_xtc(logprobs, sampling, none, draws) > -1e9).tolist()
    assert kept == [[False, False, True, True], [True] * 4], "each row has a draw of its own"
    kept = (apply_xtc(logprobs, sampling, first, draws) > -1e9).tolist()
    assert kept[0] == [True, False, True, True]
    alone_above = mx.log(mx.array([[0.9, 0.05, 0.05]]))
    assert (apply_xtc(alone_above, sampling, none[:3], draws[:1]) > -1e9).all().item()


def test_xtc_always_spares_end_tokens_and_line_breaks() -> None:
    sampler = OwnSampler(
        Sampling(temperature=1e-3, seed=1, xtc_probability=1, xtc_threshold=0.1), vocabulary=3, spared=[0]
    )
    logprobs = mx.log(mx.array([[0.6, 0.25, 0.15]]))
    assert [sampler(logprobs).item() for _ in range(5)] == [0] * 5


def test_rows_that_differ_only_in_processors_share_a_sampler() -> None:
    samplers = Samplers(vocabulary=263)
    assert samplers.of(Sampling(temperature=0.7)) is samplers.of(Sampling(0.7, presence_penalty=1.0))
    assert samplers.of(Sampling(xtc_probability=0.1)) is samplers.of(Sampling(xtc_probability=0.1))


def test_several_answers_to_one_request_have_seeds_of_their_own() -> None:
    assert seed_of(7, 0) == 7
    assert len({seed_of(seed, index) for seed in range(20) for index in range(20)}) == 400
    assert seed_of(None, 3) is None


def test_log_probabilities_are_those_of_the_model() -> None:
    wanted = replace(row(2), logprobs=4)
    batch = new_batch()
    for number in (5, 6):
        batch.insert(replace(row(number), logprobs=None if number == 5 else 0))
    batch.insert(wanted)
    found = outputs(batch)
    network = loaded(TINY).network
    said = [output.token for output in found[2]]
    logits = network(mx.array([wanted.prompt + said]))[0].astype(mx.float32)
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for position, output in enumerate(found[2]):
        at = expected[len(wanted.prompt) - 1 + position]
        scored = output.logprobs
        assert scored is not None
        assert scored.logprob == pytest.approx(at[output.token].item(), abs=1e-3)
        assert len(scored.best) == 4
        assert [value for _, value in scored.best] == sorted((v for _, v in scored.best), reverse=True)
        assert scored.best[0] == (output.token, scored.logprob), "greedy takes the likeliest"
    assert all(output.logprobs is None for output in found[5])
    assert all(output.logprobs is not None and output.logprobs.best == () for output in found[6])


@pytest.mark.parametrize(
    "length", [n if n in (1, 65) else pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 64, 65, 200)]
)
def test_rows_of_a_family_are_each_what_they_are_alone(length: int) -> None:
    samplings = [GREEDY, *(Sampling(temperature=1, seed=seed) for seed in range(3))]
    family = [
        replace(row(1, sampling, length=length), id=10 + number, family=1)
        for number, sampling in enumerate(samplings)
    ]
    batch = new_batch()
    batch.insert(row(2))
    for wanted in family:
        batch.insert(wanted)
    together = finish(batch)
    batch.forget(1)
    for wanted in family:
        assert together[wanted.id] == alone(replace(wanted, family=None))
    assert together[2] == alone(row(2))
    assert batch.kv_bytes == 0


def test_the_prompt_of_a_family_is_computed_once() -> None:
    batch = new_batch(max_rows=4)
    with batch._generator.stats() as stats:
        for number in range(4):
            batch.insert(replace(row(1, length=300), id=number, family=1))
        finish(batch)
    assert stats.prompt_tokens == 299
    batch.forget(1)


def test_a_prompt_that_is_known_already_keeps_no_row_of_a_family_waiting() -> None:
    """Each row waited for the one before it when all of the prompt but its last token was in the cache."""
    batch = new_batch(max_rows=4, prompts=PromptCache(2**30))
    wanted = row(1, length=300)
    batch.insert(wanted)
    expected = finish(batch)[1]
    batch.settle()
    with batch._generator.stats() as stats:
        for number in range(4):
            batch.insert(replace(wanted, id=number, family=1))
        found = outputs(batch)
    assert [[o.token for o in found[number]] for number in range(4)] == [expected] * 4
    assert stats.prompt_tokens == 0 and stats.generation_steps <= len(expected) + 1
    batch.forget(1)


def test_a_row_that_comes_late_begins_from_the_familys_cache() -> None:
    batch = new_batch(max_rows=1)
    with batch._generator.stats() as stats:
        batch.insert(replace(row(1, length=300), id=1, family=1))
        first = finish(batch)[1]
        assert batch.kv_bytes > 0
        batch.insert(replace(row(1, length=300), id=2, family=1))
        assert finish(batch)[2] == first
    assert stats.prompt_tokens == 299
    batch.forget(1)
    assert batch.kv_bytes == 0


def test_a_family_goes_on_without_the_row_that_computed_its_prompt() -> None:
    batch = new_batch(prefill_step=32)
    for number in range(3):
        batch.insert(replace(row(1, length=300), id=number, family=1))
    batch.step()
    batch.step()
    assert batch.remove(0)
    assert len(batch) == 2
    together = finish(batch)
    expected = alone(row(1, length=300))
    assert together == {1: expected, 2: expected}


def test_a_waiting_row_of_a_family_is_taken_out() -> None:
    batch = new_batch(prefill_step=32)
    for number in range(3):
        batch.insert(replace(row(1, length=300), id=number, family=1))
    batch.step()
    assert batch.remove(1) and not batch.remove(1)
    assert set(finish(batch)) == {0, 2}
    batch.forget(1)


def test_a_reset_forgets_waiting_rows_too() -> None:
    batch = new_batch(prefill_step=32)
    for number in range(3):
        batch.insert(replace(row(1, length=300), id=number, family=1))
    batch.step()
    assert sorted(batch.reset()) == [0, 1, 2]
    assert not len(batch)
    batch.forget(1)
    batch.insert(Row(9, [40, 41], 3, GREEDY, family=1))
    assert len(finish(batch)[9]) == 3


def test_endings_are_told_apart() -> None:
    """A row's own end tokens never end a row beside it."""
    natural = alone(row(1))
    batch = new_batch(ENDS)
    batch.insert(replace(row(3, tokens=50), ignore_eos=True, stop_tokens=(END_OF_TEXT,)))
    batch.insert(row(1))
    assert finish(batch)[1] == alone(row(1), tiny=ENDS)
    assert len(natural) == 24

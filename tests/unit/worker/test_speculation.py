"""A draft proposes, the model decides: the same text, in fewer passes, and the batch is none the wiser."""

import math
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import gemma3_text, mamba
from mlx_lm.models.cache import make_prompt_cache

from tests.fixtures.tiny import VOCABULARY, Tiny
from tests.unit.worker.test_batch import GREEDY, TINY, alone, finish, loaded, new_batch, row
from tests.unit.worker.test_batch_choices import ENDS, FEATURES, outputs
from worker.engine.batch import Batch
from worker.engine.draft import CLOSE, Draft
from worker.engine.prompt_cache import PromptCache
from worker.engine.rewind import rewind, unrewindable
from worker.engine.rows import Output, Row
from worker.request import Sampling

STRANGER = Tiny(seed=9, layers=1)
"""Knows nothing of the others: hardly ever right."""
PROPOSED = 4
LATER = set(FEATURES) - {"repetition", "log probabilities"}


def draft(network: Any, *, own_width: int = VOCABULARY, context: int = 10_000) -> Draft:
    return Draft(network, width=VOCABULARY, own_width=own_width, context=context, prefill_step=64)


def drafted(tiny: Tiny = TINY, by: Tiny = TINY, **options: Any) -> Batch:
    """A batch on `tiny` with `by` as its draft; the model itself is a draft that is always right."""
    return new_batch(tiny, draft=draft(loaded(by).network), draft_tokens=PROPOSED, **options)


def run(batch: Batch, *rows: Row) -> dict[int, list[Output]]:
    for wanted in rows:
        batch.insert(wanted)
    return outputs(batch)


def tokens(found: list[Output]) -> list[int]:
    return [output.token for output in found]


@pytest.mark.parametrize(
    ("name", "by"),
    [
        # One that is hardly ever right goes the same way with every feature; two tell of it on every run.
        pytest.param(name, by, marks=pytest.mark.slow if by is STRANGER and name in LATER else ())
        for name in (None, *FEATURES)
        for by in (TINY, STRANGER)
    ],
)
def test_a_draft_changes_nothing_but_the_number_of_passes(name: str | None, by: Tiny) -> None:
    fields = {"sampling": GREEDY, **FEATURES.get(name or "", {})}
    wanted = Row(1, [40 + position for position in range(30)], 30, **fields)
    expected = run(new_batch(), wanted)[1]
    batch = drafted(by=by)
    found = run(batch, wanted)[1]
    assert tokens(found) == tokens(expected)
    assert [output.finish for output in found] == [output.finish for output in expected]
    for one, other in zip(found, expected, strict=True):
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-3)
            assert [token for token, _ in one.logprobs.best] == [token for token, _ in other.logprobs.best]
        else:
            assert one.logprobs is other.logprobs is None
    counts = batch.speculated
    assert counts is not None
    assert counts.proposed == sum(output.proposed for output in found)
    assert counts.accepted == sum(output.drafted for output in found)
    if by is TINY:
        # What ends the row may come in the middle of what was proposed.
        assert counts.proposed - counts.accepted < PROPOSED
        assert counts.steps < len(found) / 2
    elif name is None:
        assert counts.accepted < counts.proposed / 4


@pytest.mark.parametrize("seed", [3, 4])
def test_a_row_that_ends_by_itself_ends_where_it_would(seed: int) -> None:
    wanted = row(2, Sampling(temperature=1.0, seed=seed), tokens=400)
    expected = run(new_batch(ENDS), wanted)[2]
    found = run(drafted(ENDS, ENDS), wanted)[2]
    assert tokens(found) == tokens(expected)
    assert [output.finish for output in found] == [output.finish for output in expected]
    assert expected[-1].finish == "stop"


def test_draws_without_a_seed_follow_the_model() -> None:
    """Chi-squared over the second token, which is the first that the draft proposes."""
    likely = Sampling(temperature=1.0, top_k=2)
    prompt = [50, 60, 70, 80]
    batch = drafted(by=STRANGER)
    network = loaded(TINY).network
    counts: dict[tuple[int, int], int] = {}
    times = 60
    for number in range(times):
        first, second = tokens(run(batch, Row(number, prompt, 2, likely))[number])
        counts[first, second] = counts.get((first, second), 0) + 1

    @cache
    def chances(*after: int) -> dict[int, float]:
        logits: list[float] = network(mx.array([[*prompt, *after]]))[0, -1].tolist()
        best = sorted(range(VOCABULARY), key=lambda token: -logits[token])[:2]
        weights = [math.exp(logits[token] - logits[best[0]]) for token in best]
        return {token: weight / sum(weights) for token, weight in zip(best, weights, strict=True)}

    statistic = 0.0
    for first, share in chances().items():
        for second, then in chances(first).items():
            expected = times * share * then
            statistic += (counts.pop((first, second), 0) - expected) ** 2 / expected
    # Three degrees of freedom: more than 30 comes once in a million runs.
    assert statistic < 30
    assert not counts, "drawn though it is not one of the two likeliest"


def test_others_may_join_and_leave_at_any_step() -> None:
    """A speculating row moves into the ordinary batch and back without a lost or repeated token."""
    expected = {number: alone(row(number, tokens=60)) for number in (1, 2, 3)}
    for joins in (0, 2, 6):
        batch = drafted(by=TINY if joins % 4 else STRANGER)
        said: dict[int, list[int]] = {1: [], 2: [], 3: []}

        def step(batch: Batch = batch, said: dict[int, list[int]] = said) -> int:
            found = batch.step()
            for output in found:
                said[output.row].append(output.token)
            return sum(output.proposed for output in found)

        batch.insert(row(1, tokens=60))
        for _ in range(1 + joins):
            step()
        batch.insert(row(2, tokens=60))
        together = 0
        while len(said[2]) < 5:
            together += step()
        assert batch.remove(2)
        batch.insert(row(3, tokens=60))
        while len(batch):
            step()
        assert together == 0 or joins < 2, "the draft proposes for one row alone"
        assert said[1] == expected[1]
        assert said[2] == expected[2][: len(said[2])]
        assert said[3] == expected[3]


def test_a_row_alone_again_is_speculated_for_again() -> None:
    batch = drafted()
    batch.insert(row(1, tokens=100))
    batch.insert(row(2, tokens=10))
    found: list[Output] = []
    while len(batch):
        found += batch.step()
    late = [output for output in found if output.row == 1][40:]
    assert sum(output.drafted for output in late) > len(late) / 2


def test_the_draft_reads_a_long_prompt_while_the_answer_has_begun() -> None:
    batch = drafted()
    batch.insert(row(1, length=900, tokens=60))
    found: list[Output] = []
    while not found:
        found = batch.step()
    assert batch.speculated is not None and batch.speculated.steps == 0
    said = [output.token for output in found]
    plain = 0
    while not batch.speculated.steps:
        plain += 1
        said += [output.token for output in batch.step()]
    assert plain > 3
    said += finish(batch)[1]
    assert said == alone(row(1, length=900, tokens=60))


def test_the_next_turn_needs_no_reading_again() -> None:
    batch = drafted(prompts=PromptCache(2**26))
    prompt = [40 + position % 50 for position in range(500)]
    (first,) = run(batch, Row(1, prompt, 40, GREEDY)).values()
    batch.settle()
    turn = [*prompt, *tokens(first), 65, 66, 67]
    batch.insert(Row(2, turn, 40, GREEDY))
    found: list[Output] = []
    steps = 0
    while not any(output.proposed for output in found):
        found += batch.step()
        steps += 1
    assert steps <= 4
    found += outputs(batch)[2]
    assert tokens(found) == tokens(run(new_batch(), Row(2, turn, 40, GREEDY))[2])
    assert batch.cached() == [(1, 0), (2, len(turn) - 4)]


def test_a_cancelled_row_leaves_usable_state() -> None:
    batch = drafted(prompts=PromptCache(2**26))
    batch.insert(row(3, tokens=1000))
    for _ in range(20):
        batch.step()
    assert batch.remove(3)
    assert not len(batch)
    batch.settle()
    assert tokens(run(batch, row(3, tokens=80))[3]) == alone(row(3, tokens=80))
    ((_, first), (_, again)) = batch.cached()
    assert first == 0 and again > 0


def test_a_failed_step_forgets_what_the_draft_read() -> None:
    batch = drafted()
    batch.insert(row(1, tokens=100))
    for _ in range(5):
        batch.step()
    assert batch.reset() == [1]
    assert tokens(run(batch, row(2))[2]) == alone(row(2))


def test_the_draft_is_counted_and_let_go_of() -> None:
    batch = drafted()
    run(batch, row(1))
    held = batch.kv_bytes
    assert held > 0
    assert batch.forget_draft() == held
    assert batch.kv_bytes == 0
    assert tokens(run(batch, row(2))[2]) == alone(row(2))
    assert new_batch().forget_draft() == 0


def test_no_more_is_proposed_than_may_be_said() -> None:
    for most in range(1, 8):
        found = run(drafted(), row(1, tokens=most))[1]
        assert tokens(found) == alone(row(1, tokens=most))
        assert sum(output.proposed for output in found) == sum(output.drafted for output in found)


def test_a_draft_does_not_read_beyond_its_context() -> None:
    batch = new_batch(draft=draft(loaded(TINY).network, context=60), draft_tokens=PROPOSED)
    found = run(batch, row(1, tokens=100))[1]
    assert tokens(found) == alone(row(1, tokens=100))
    assert any(output.proposed for output in found)
    assert not any(output.proposed for output in found[60:])


def test_tokens_that_only_one_of_them_knows() -> None:
    """The text has tokens that the draft has no embedding for; and it never proposes any itself."""
    small = draft(loaded(STRANGER).network, own_width=60)
    batch = new_batch(draft=small, draft_tokens=PROPOSED)
    assert tokens(run(batch, row(1))[1]) == alone(row(1))
    seen = mx.arange(60, dtype=mx.float32)[None]
    assert small._fitted(seen).shape == (1, VOCABULARY)
    assert mx.argmax(small._fitted(seen)).item() == 59


# State of other kinds than the plain KV cache.


def mamba_network(seed: int = 0) -> Any:
    mx.random.seed(seed)
    arguments = mamba.ModelArgs(
        model_type="mamba",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        state_size=8,
        num_hidden_layers=2,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    return mamba.Model(arguments)


def window_network(seed: int = 0) -> Any:
    """Layers that see the last 16 tokens, beside one that sees all."""
    mx.random.seed(seed)
    arguments = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=32,
        num_hidden_layers=4,
        intermediate_size=64,
        num_attention_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        num_key_value_heads=1,
        sliding_window=16,
        sliding_window_pattern=4,
    )
    network = gemma3_text.Model(arguments)
    network.update({"model": {"embed_tokens": {"weight": mx.random.normal((VOCABULARY, 32))}}})
    return network


def greedy(logits: Any) -> int:
    token: Any = mx.argmax(logits).item()
    return int(token)


def batch_on(network: Any, **options: Any) -> Batch:
    return Batch(network, [VOCABULARY - 1], max_rows=4, prefill_step=64, **options)


@pytest.mark.parametrize("make", [window_network, mamba_network])
def test_a_draft_of_any_kind_is_always_right_about_itself(make: Any) -> None:
    """What it read of wrong proposals is taken back whatever its state is: here the only wrong ones are those
    of a row that was over."""
    reader, row_tokens = draft(make()), [50 + position % 30 for position in range(40)]
    network = make()

    def choose(logits: Any, before: Any, ahead: int) -> Any:
        return mx.argmax(logits, axis=-1)

    def said(count: int) -> list[int]:
        state = make_prompt_cache(network)
        logits = network(mx.array([row_tokens]), cache=state)
        found: list[int] = []
        for _ in range(count):
            found.append(greedy(logits[0, -1]))
            logits = network(mx.array([[found[-1]]]), cache=state)
        return found

    while reader.behind(row_tokens) > CLOSE:
        reader.read(10)
    for kept in (0, 1, 3, 4, 2):
        last, *expected = said(5)
        proposed = reader.propose(mx.array([last], dtype=mx.uint32), 4, choose).tolist()
        assert proposed == expected
        row_tokens += [last, *proposed[:kept]]
        reader.settle()
        assert reader.behind(row_tokens) <= 4


@pytest.mark.parametrize("length", [13, 40])
def test_windows_are_rewound_beyond_their_length(length: int) -> None:
    network = window_network()
    assert unrewindable(network) == []
    wanted = Row(1, [40 + position for position in range(length)], 24, GREEDY)
    expected = tokens(run(batch_on(network), wanted)[1])
    for seed in (0, 1):
        other = draft(window_network(seed))
        batch = batch_on(network, draft=other, draft_tokens=PROPOSED)
        found = run(batch, wanted)[1]
        assert tokens(found) == expected
        assert batch.speculated is not None
        assert (batch.speculated.accepted == batch.speculated.proposed) == (seed == 0)


def test_rewound_state_is_that_of_the_tokens_that_are_left() -> None:
    network = window_network()
    for before in (3, 14, 40):
        states = []
        for extra in (0, 3):
            batch = batch_on(network)
            batch.insert(Row(1, [60] * before, 100, GREEDY))
            while not batch.step():
                pass
            state = batch._generator._generation_batch.prompt_cache
            network(mx.array([[70, 71, 72, 73, 74][: 2 + extra]]), cache=state)
            rewind(state, extra)
            later = [network(mx.array([[80]]), cache=state)[0, -1] for _ in range(6)]
            states.append(mx.stack(later))
        assert mx.allclose(states[0], states[1], atol=1e-4).item()


def test_recurrent_state_can_not_be_rewound() -> None:
    assert unrewindable(mamba_network()) == ["ArraysCache"]

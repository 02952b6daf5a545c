"""Scores of answers on real, tiny models: what is computed together equals what is computed alone."""

import math
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from tests.fixtures.cache_kinds import write_kind
from tests.fixtures.tiny import Tiny, tiny_model
from worker.decisions import _shares
from worker.engine.jobs import Work
from worker.engine.prompt_cache import PromptCache
from worker.engine.prompt_scores import PromptScorer, PromptScores
from worker.engine.scoring import Ballot, Scorer

T = TypeVar("T")

PREFIX = [(7 * position) % 95 + 32 for position in range(60)]
ANSWERS = [[65], [66, 67], [66, 68, 69], [70, 71, 72, 73, 74], [66]]


def done(work: Work[T]) -> tuple[T, int]:
    """The result and how many slices it took."""
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, slices
        slices += 1


@cache
def network() -> Any:
    return load_model(tiny_model(Tiny(speaks="all")))[0]


def directly(model: Any, prompt: list[int], answer: list[int]) -> float:
    """The same from one forward pass without a cache."""
    logits = model(mx.array([[*prompt, *answer]]))[0].astype(mx.float32)
    logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    at = len(prompt) - 1
    return float(sum(logits[at + index, token].item() for index, token in enumerate(answer)))


def test_scores_are_those_of_each_answer_alone() -> None:
    ballots = [Ballot([33, 34], ANSWERS), Ballot([35], ANSWERS[::-1]), Ballot(PREFIX[::-1], [[65], [80, 81]])]
    scores, _ = done(Scorer(network(), prefill_step=512).score(PREFIX, ballots))
    for ballot, found in zip(ballots, scores.logarithms, strict=True):
        expected = [directly(network(), PREFIX + ballot.rest, answer) for answer in ballot.answers]
        assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "mamba2", "lfm2", "qwen3_next", "deepseek_v3"])
def test_every_kind_of_cache_can_be_shared(kind: str, tmp_path: Path) -> None:
    mx.random.seed(3)
    model = load_model(write_kind(tmp_path / kind, kind))[0]
    prefix = PREFIX * 3  # longer than the sliding windows
    ballots = [Ballot([33, 34], ANSWERS), Ballot([35, 36, 37], ANSWERS)]
    scores, _ = done(Scorer(model, prefill_step=64).score(prefix, ballots))
    for ballot, found in zip(ballots, scores.logarithms, strict=True):
        expected = [directly(model, prefix + ballot.rest, answer) for answer in ballot.answers]
        assert found == pytest.approx(expected, abs=2e-2)


def test_a_long_prefix_is_computed_in_slices() -> None:
    scorer = Scorer(network(), prefill_step=16)
    prefix = PREFIX * 4
    _, slices = done(scorer.score(prefix, [Ballot([33], [[65], [66]])]))
    assert slices >= 5


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba2"])
def test_what_an_earlier_one_began_with_is_not_computed_again(kind: str, tmp_path: Path) -> None:
    mx.random.seed(3)
    model = network() if kind == "llama" else load_model(write_kind(tmp_path / kind, kind))[0]
    prompts = PromptCache(2**30)
    warm, cold = (Scorer(model, prefill_step=64, prompts=cache) for cache in (prompts, None))
    for rests, cached in (([[33, 34], [35]], 0), ([[36, 37]], len(PREFIX)), ([[33, 34], [35]], len(PREFIX))):
        ballots = [Ballot(rest, ANSWERS) for rest in rests]
        found, _ = done(warm.score(PREFIX, ballots))
        fresh, _ = done(cold.score(PREFIX, ballots))
        assert found.cached == cached
        for one, other in zip(found.logarithms, fresh.logarithms, strict=True):
            assert one == pytest.approx(other, abs=1e-3)
    assert done(warm.score(PREFIX, [Ballot([33], ANSWERS)], adapter="other"))[0].cached == 0


def scores_of(scorer: PromptScorer, tokens: list[int], **fields: Any) -> PromptScores:
    return done(scorer.score(tokens, **{"alternatives": 2, **fields}))[0]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba2"])
def test_scores_of_a_prompt_go_on_from_what_an_earlier_one_shares(kind: str, tmp_path: Path) -> None:
    mx.random.seed(3)
    model = network() if kind == "llama" else load_model(write_kind(tmp_path / kind, kind))[0]
    warm = PromptScorer(model, prefill_step=64, prompts=PromptCache(2**30))
    for tokens in (PREFIX, [*PREFIX, 40, 41, 42], [*PREFIX[:50], 60, 61]):
        found = scores_of(warm, tokens)
        fresh = scores_of(PromptScorer(model, prefill_step=64), tokens)
        assert fresh.cached == 0 and len(found.scores) == len(tokens) - 1
        for one, other in zip(found.scores, fresh.scores, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.best] == [token for token, _ in other.best]
        # All but the last token have been read by the first, of which the second is a longer form.
        if tokens == [*PREFIX, 40, 41, 42]:
            assert found.cached == len(PREFIX) - 1
    again = scores_of(warm, PREFIX, alternatives=1)
    assert again.cached == len(PREFIX) - 1
    assert all(len(score.best) == 1 for score in again.scores)
    # Other alternatives than were told, and another adapter, are computed anew.
    assert scores_of(warm, PREFIX, alternatives=5).cached == 0
    assert scores_of(warm, PREFIX, adapter="other").cached == 0


def test_an_answer_is_not_the_longer_one_that_begins_with_it() -> None:
    """ "cat" was as likely as "cat" and "catfish" together."""
    shares = _shares([[1], [1, 2], [3]], [math.log(0.6), math.log(0.5), math.log(0.2)])
    assert shares == pytest.approx([0.1 / 0.8, 0.5 / 0.8, 0.2 / 0.8])


def test_hopeless_answers_have_shares_too() -> None:
    assert _shares([[1], [2]], [-5000.0, -5000.0]) == [0.5, 0.5]
    assert _shares([[1], [2]], [-9000.0, -10.0]) == [0.0, 1.0]

"""Prompt state is found again: warm answers equal cold ones, for every kind of cache."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model

from tests.fixtures.cache_kinds import write_kind
from worker.engine.batch import Batch
from worker.engine.generator import END
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Output, Row
from worker.request import Sampling

GREEDY = Sampling(temperature=0)
TRIMMABLE = ("llama", "qwen3", "deepseek_v3")
FIXED = ("mamba", "mamba2", "lfm2", "qwen3_next", "falcon_h1", "gemma3_text", "gpt_oss")
KINDS = [
    # Of kinds whose caches are alike, one is enough for every change; the others take their time.
    pytest.param(kind, marks=pytest.mark.slow)
    if kind in ("qwen3", "mamba2", "falcon_h1", "qwen3_next")
    else kind
    for kind in (*TRIMMABLE, *FIXED)
]
FEW = [
    kind if kind in ("llama", "mamba", "lfm2", "gemma3_text") else pytest.param(kind, marks=pytest.mark.slow)
    for kind in (*TRIMMABLE, *FIXED)
]
AMPLE = 2**30
Tokens = list[int]


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kinds")

    @cache
    def network(kind: str) -> Any:
        return load_model(write_kind(Path(folder) / kind, kind))[0]

    return network


def new_batch(network: Any, prompts: PromptCache | None = None, **options: Any) -> Batch:
    return Batch(network, [], **{"max_rows": 8, "prefill_step": 64, "prompts": prompts, **options})


def run(batch: Batch, *rows: Row) -> dict[int, tuple[Tokens, int]]:
    """Generated tokens and cached tokens by row."""
    for row in rows:
        batch.insert(row)
    tokens: dict[int, Tokens] = {row.id: [] for row in rows}
    cached: dict[int, int] = {}
    while len(batch):
        for output in batch.step():
            tokens.setdefault(output.row, []).append(output.token)
        cached.update(batch.cached())
    batch.settle()
    return {number: (tokens[number], cached[number]) for number in tokens}


def text(seed: int, length: int) -> Tokens:
    return [(31 * seed + 7 * place + place * place % 13) % 240 + 5 for place in range(length)]


def row(number: int, prompt: Tokens, *, tokens: int = 12, **fields: Any) -> Row:
    return Row(number, prompt, tokens, GREEDY, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_computes_only_its_own_tokens_and_says_the_same(networks: Any, kind: str) -> None:
    network = networks(kind)
    prompts = PromptCache(AMPLE)
    batch = new_batch(network, prompts)
    first = text(1, 150)
    answer, cached = run(batch, row(0, first, boundaries=(60, 140)))[0]
    assert cached == 0
    second = first + answer + text(2, 30)
    warm = run(batch, row(1, second, boundaries=(60, len(second) - 4)))[1]
    # No pass has read the last token of the answer.
    assert warm == (run(new_batch(network), row(1, second))[1][0], len(first) + len(answer) - 1)
    assert prompts.counts.hits == 1 and prompts.counts.misses == 1


@pytest.mark.parametrize("kind", FEW)
def test_a_turn_that_differs_from_what_was_generated_hits_the_users_turn(networks: Any, kind: str) -> None:
    """Thinking is dropped from history, so that the answer's own state fits no later prompt."""
    network = networks(kind)
    batch = new_batch(network, PromptCache(AMPLE))
    first = text(1, 150)
    run(batch, row(0, first, boundaries=(60, 140)))
    second = first[:140] + text(9, 25)
    tokens, cached = run(batch, row(1, second, boundaries=(60, 150)))[1]
    assert cached == 140
    assert tokens == run(new_batch(network), row(1, second))[1][0]
    other = first[:60] + text(8, 90)
    tokens, cached = run(batch, row(2, other, boundaries=(60, 140)))[2]
    assert cached == 60
    assert tokens == run(new_batch(network), row(2, other))[2][0]


@pytest.mark.parametrize("kind", FEW)
def test_rows_that_begin_from_one_entry_do_not_disturb_each_other(networks: Any, kind: str) -> None:
    network = networks(kind)
    batch = new_batch(network, PromptCache(AMPLE))
    prompt = text(3, 130)
    run(batch, row(0, prompt, boundaries=(100,)))
    rows = [row(n, prompt[:100] + text(n, 5 * n), boundaries=(100,)) for n in range(1, 5)]
    together = run(batch, *rows)
    for wanted in rows:
        alone = run(new_batch(network), wanted)[wanted.id][0]
        assert together[wanted.id] == (alone, 100), wanted.id
    again = run(batch, row(9, prompt[:100] + text(1, 5)))[9]
    assert again[0] == together[1][0]


@pytest.mark.parametrize(("kind", "known"), [("llama", 90 - END), ("gemma3_text", 89), ("lfm2", 89)])
def test_the_same_prompt_again_leaves_its_end_to_compute(networks: Any, kind: str, known: int) -> None:
    batch = new_batch(networks(kind), PromptCache(AMPLE))
    prompt = text(4, 90)
    cold, _ = run(batch, row(0, prompt, boundaries=(89,)))[0]
    assert run(batch, row(1, prompt, boundaries=(89,)))[1] == (cold, known)


@pytest.mark.parametrize("length", [20, 40, 90, 200])
def test_the_same_prompt_again_has_the_same_probabilities_to_the_last_bit(networks: Any, length: int) -> None:
    """Half precision tells a token that was computed alone from one that was computed with others, and
    answers that should be the same differed where two tokens were about as likely.
    """
    batch = new_batch(networks("llama"), PromptCache(AMPLE))

    def likelihoods(number: int) -> list[Any]:
        batch.insert(row(number, text(4, length), logprobs=3))
        said: list[Any] = []
        while len(batch):
            said += [output.logprobs for output in batch.step()]
        batch.settle()
        return said

    cold = likelihoods(0)
    assert likelihoods(1) == cold
    assert likelihoods(2) == cold


def test_a_row_that_still_runs_shares_its_prompt(networks: Any) -> None:
    network = networks("llama")
    batch = new_batch(network, PromptCache(AMPLE))
    prompt = text(5, 120)
    batch.insert(row(0, prompt, tokens=200))
    while not batch.step():
        pass
    batch.cached()
    batch.insert(row(1, prompt[:100] + text(6, 40)))
    said: list[Output] = []
    while not said or said[-1].finish is None:
        said += [output for output in batch.step() if output.row == 1]
    assert batch.cached() == [(1, 100)]
    alone = run(new_batch(network), row(1, prompt[:100] + text(6, 40)))[1][0]
    assert [output.token for output in said] == alone


def test_a_row_that_was_stopped_leaves_its_state(networks: Any) -> None:
    """A stop string ends a row from outside; that turn goes on later too."""
    network = networks("llama")
    batch = new_batch(network, PromptCache(AMPLE))
    prompt = text(5, 120)
    batch.insert(row(0, prompt, tokens=200))
    for _ in range(12):
        batch.step()
    assert batch.remove(0)
    batch.settle()
    tokens, cached = run(batch, row(1, prompt + text(6, 10)))[1]
    assert cached == 120
    assert tokens == run(new_batch(network), row(1, prompt + text(6, 10)))[1][0]


def test_adapters_share_nothing(networks: Any) -> None:
    batch = new_batch(networks("llama"), PromptCache(AMPLE))
    prompt = text(7, 60)
    assert run(batch, row(0, prompt))[0][1] == 0
    assert run(batch, row(1, prompt, adapter="sql"))[1][1] == 0
    assert run(batch, row(2, prompt, adapter="sql"))[2][1] == 60 - END


def test_a_failed_step_keeps_nothing_of_its_rows(networks: Any) -> None:
    prompts = PromptCache(AMPLE)
    batch = new_batch(networks("llama"), prompts)
    batch.insert(row(0, text(7, 60)))
    batch.step()
    batch.reset()
    batch.settle()
    assert len(prompts) == 0
    assert run(batch, row(1, text(7, 60)))[1][1] == 0

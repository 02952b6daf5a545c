"""How prompts are taken in: in as few passes as there can be, and to the same effect as mlx-lm's."""

import asyncio
import threading
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from shared.launch import Options
from tests.fixtures.tiny import Tiny, tiny_model
from worker.engine.batch import Batch
from worker.engine.generator import RowGenerator
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Output, Report, Row
from worker.engine.thread import Engine
from worker.model.loading import load
from worker.request import Sampling

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def network() -> Any:
    return load(tiny_model(Tiny()), Options(), lambda _: None).network


class Watched:
    """A network that notes the shape of what each pass is about."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.passes: list[tuple[int, ...]] = []

    def __call__(self, inputs: Any, cache: Any) -> Any:
        self.passes.append(tuple(inputs.shape))
        return self._network(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def prompt(number: int, length: int) -> list[int]:
    return [(7 * number + 3 * place + place * place % 11) % 95 + 32 for place in range(length)]


def row(number: int, length: int, *, tokens: int = 1, **fields: Any) -> Row:
    return Row(number, prompt(number, length), tokens, GREEDY, **fields)


def passes(network: Any, *rows: Row, prompts: PromptCache | None = None, step: int = 64) -> list[Any]:
    """The passes it takes until each of `rows` has said its only token."""
    watched = Watched(network)
    batch = Batch(watched, [], max_rows=8, prefill_step=step, prompts=prompts)
    watched.passes.clear()
    for each in rows:
        batch.insert(each)
    while len(batch):
        batch.step()
    batch.settle()
    return watched.passes


def finish(batch: Batch) -> list[Output]:
    outputs = []
    while len(batch):
        outputs += batch.step()
    batch.settle()
    return outputs


def test_a_short_prompt_is_computed_in_one_pass(network: Any) -> None:
    assert passes(network, row(1, 1)) == [(1, 1)]
    assert passes(network, row(1, 20)) == [(1, 20)]
    assert passes(network, row(1, 32)) == [(1, 32)]


def test_a_long_prompt_leaves_more_than_its_last_token_to_the_last_pass(network: Any) -> None:
    assert passes(network, row(1, 40)) == [(1, 8), (1, 32)]
    assert passes(network, row(1, 200)) == [(1, 64), (1, 64), (1, 40), (1, 32)]
    assert passes(network, row(1, 20), step=8) == [(1, 8), (1, 8), (1, 4)]


def test_a_step_compares_no_more_tokens_than_it_may(network: Any) -> None:
    """On the CPU all scores of attention are in memory at a time."""
    watched = Watched(network)
    batch = Batch(watched, [], max_rows=8, prefill_step=64, most_scores=6000)
    watched.passes.clear()
    batch.insert(row(1, 300))
    (said,) = [output.token for output in finish(batch)]
    assert sum(length for _, length in watched.passes) == 300
    seen = 0
    for _, length in watched.passes:
        seen += length
        assert length * seen <= 6000 or length <= 8
    assert len({length for _, length in watched.passes}) > 2, "it shrinks as the prompt grows"
    # It may be changed at any time.
    watched.passes.clear()
    batch.most_scores = 0
    batch.insert(row(2, 300))
    finish(batch)
    assert watched.passes[0] == (1, 64)
    plain = Batch(network, [], max_rows=8, prefill_step=64)
    plain.insert(row(1, 300))
    assert [output.token for output in finish(plain)] == [said]


def test_a_prompt_that_goes_on_from_a_kept_one_counts_that(network: Any) -> None:
    prompts = PromptCache(2**30)
    passes(network, row(1, 250), prompts=prompts)
    watched = Watched(network)
    batch = Batch(watched, [], max_rows=8, prefill_step=64, most_scores=6000, prompts=prompts)
    watched.passes.clear()
    batch.insert(Row(2, [*prompt(1, 250), *prompt(5, 100)], 1, GREEDY))
    finish(batch)
    assert watched.passes[0][1] == 6000 // (250 + 64)


def test_no_pass_is_made_for_what_nobody_asked_for(network: Any) -> None:
    assert passes(network, row(1, 20, tokens=3)) == [(1, 20), (1, 1), (1, 1)]
    assert passes(network, row(1, 20), row(2, 20, tokens=2)) == [(2, 20), (2, 1)]
    assert passes(network, row(1, 20, tokens=2), row(2, 20, tokens=2)) == [(2, 20), (2, 1)]


def test_prompts_of_one_length_end_in_one_pass_and_others_with_their_last_tokens(network: Any) -> None:
    assert passes(network, row(1, 20), row(2, 20)) == [(2, 20)]
    assert passes(network, row(1, 20), row(2, 17)) == [(2, 19), (2, 1)]


def test_the_next_turn_is_one_pass_over_its_own_tokens(network: Any) -> None:
    prompts = PromptCache(2**30)
    known = row(1, 150)
    passes(network, known, prompts=prompts)
    new = Row(2, [*known.prompt, *prompt(5, 25)], 1, GREEDY)
    assert passes(network, new, prompts=prompts) == [(1, 25)]


def test_state_that_rows_begin_with_is_not_written_to(network: Any) -> None:
    prompts = PromptCache(2**30)
    known = row(1, 100)
    passes(network, known, prompts=prompts)
    (entry,) = prompts.entries()
    before = [(mx.array(layer.keys), layer.keys.shape, layer.offset) for layer in entry.state]
    passes(network, Row(2, [*known.prompt, *prompt(5, 25)], 1, GREEDY), prompts=prompts)
    passes(network, Row(3, [*known.prompt[:70], *prompt(6, 9)], 1, GREEDY), prompts=prompts)
    for layer, (keys, shape, offset) in zip(entry.state, before, strict=True):
        assert layer.keys.shape == shape and layer.offset == offset
        assert mx.array_equal(layer.keys, keys)


def generated(kind: type[Any], network: Any, lengths: tuple[int, ...], step: int) -> list[list[int]]:
    generator = kind(network, prefill_step_size=step, stream=mx.default_stream(mx.default_device()))
    uids = generator.insert(
        [prompt(n, length) for n, length in enumerate(lengths)], max_tokens=[12] * len(lengths)
    )
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    while any(len(tokens) < 12 for tokens in said.values()):
        for response in generator.next()[1]:
            said[response.uid].append(response.token)
    generator.close()
    return [said[uid] for uid in uids]


@pytest.mark.parametrize(
    ("lengths", "step"),
    [((1,), 64), ((2,), 64), ((33,), 32), ((34, 33, 32), 32), ((65, 65), 32), ((1, 2, 90, 31), 16)],
)
def test_rows_say_what_they_say_with_mlx_lms_generator(
    network: Any, lengths: tuple[int, ...], step: int
) -> None:
    ours = generated(RowGenerator, network, lengths, step)
    assert ours == generated(BatchGenerator, network, lengths, step)


async def test_a_place_is_free_before_the_step_that_follows(network: Any) -> None:
    """A row that was taken out was only told of with the tokens of the next step."""
    entered = asyncio.Queue[None]()
    loop = asyncio.get_running_loop()
    passed = threading.Semaphore(0)
    reports = asyncio.Queue[Report]()

    class Gated(Watched):
        def __call__(self, inputs: Any, cache: Any) -> Any:
            loop.call_soon_threadsafe(entered.put_nowait, None)
            passed.acquire()
            return super().__call__(inputs, cache)

    class Hears:
        def on_report(self, report: Report) -> None:
            reports.put_nowait(report)

        def on_death(self, error: BaseException) -> None:
            raise error

    engine = Engine()
    engine.attach(Hears())
    passed.release()  # it is asked for the width of its logits
    await engine.open(lambda: Batch(Gated(network), [], max_rows=8, prefill_step=64))
    entered.get_nowait()
    for number in (1, 2):
        engine.insert(row(number, 20, tokens=1000))
    for _ in range(3):  # of both together, or of one and then the other
        passed.release()
        await entered.get()
    engine.remove(1)
    passed.release()
    async with asyncio.timeout(20):
        while (await reports.get()).removed != [1]:
            pass
        # The step that follows has begun, and can't end.
        await entered.get()
    engine.stop()
    passed.release(100)

"""Rows that need more than their worker may take, with real workers under a budget for one of them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.relay import handed_back
from supervisor.settings import MemorySettings, ModelSettings, Settings, WatchSettings
from tests.fixtures.pools import Bench, running
from tests.fixtures.tiny import Tiny, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORKER = (sys.executable, "-m", "worker")
WATCH = WatchSettings(silence_s=60, stall_s=120, drain_s=5, kill_grace_s=3)
SHAPES = {
    "a": Tiny(layers=8, hidden=384, context=4096, seed=1),
    "b": Tiny(layers=8, hidden=384, context=4096, seed=2),
}
TOKEN_BYTES = 8 * 2 * 2 * 96 * 4
"""Keys and values of two heads in each layer."""
PROMPT_TOKENS = 700
ROW_BYTES = 3072 * TOKEN_BYTES
"""Prompt and the 2048 tokens that are foreseen of an answer, in steps of 256."""
SHORTSIGHTED = (sys.executable, "-m", "tests.faults.shortsighted")
WIDE = dict.fromkeys(("a", "b"), Tiny(layers=3, head=1024, seed=3))
"""The same model twice, whose rows hold much and take little time."""
WIDE_TOKEN_BYTES = 3 * 2 * 2 * 1024 * 4
GROWN_TOKENS = 780
SLACK_BYTES = 24 * 2**20
"""For what mlx keeps of arrays that it has freed."""
STOPS = ["x", "e", ".", " "]
"""Some of what the model says at random."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the service runs on."""
    return "asyncio", {"use_uvloop": True}


class Answered(msgspec.Struct, frozen=True):
    """How a request ended."""

    status: int
    body: bytes
    handed_back: int
    """How often the worker gave it back before."""

    @property
    def text(self) -> str:
        said: str = msgspec.json.decode(self.body)["choices"][0]["message"]["content"]
        return said


class Machine:
    """Two models, each with a worker of its own, and a budget that a test makes as tight as it wants."""

    def __init__(self, bench: Bench, models: dict[str, ModelSettings]) -> None:
        self.bench = bench
        self._settings = Settings(watch=WATCH, models=models)
        catalog = Catalog(bench.home, self._settings)
        self.models = [catalog.resolve(name) for name in models]
        for name in models:
            # They count for what they are seen to hold.
            bench.costs.estimates[name] = 1
        self.budget_bytes = 0
        self.most_running = 0
        self.waited_for: set[tuple[str, str]] = set()

    def has(self, name: str) -> int:
        worker = self.bench.worker(name)
        assert worker is not None
        return worker.booked_bytes

    def lack_bytes(self, name: str) -> int:
        """What a large row needs beyond what the model counts for."""
        worker = self.bench.worker(name)
        assert worker is not None and worker.memory is not None
        return int((worker.memory.reserved_bytes + ROW_BYTES) / 0.95) - worker.booked_bytes

    def needed_bytes(self, name: str, rows_bytes: int) -> int:
        """What the model, which has no rows, must be allowed to take for some."""
        worker = self.bench.worker(name)
        assert worker is not None and worker.memory is not None
        return int((worker.memory.reserved_bytes + rows_bytes) / 0.95)

    async def tighten(self, budget_bytes: int) -> None:
        """Until the workers have heard of it they let rows in by what they were told before."""
        self.budget_bytes = budget_bytes
        memory = MemorySettings(spare=False, budget=str(budget_bytes))
        self.bench.pool.configure(msgspec.structs.replace(self._settings, memory=memory))
        while self._heard_bytes > budget_bytes:
            await self.bench.pool.ask_workers()

    @property
    def _heard_bytes(self) -> int:
        """What the workers think that they may take together."""
        known = [self.bench.pool._residency.model(entry.id) for entry in self.models]
        return sum(model.share_bytes for model in known if model is not None)

    async def ask(self, entry: ModelEntry, **fields: object) -> Answered:
        """A long prompt whose answer may be long, and ends soon; or what `fields` say."""
        wanted = {
            "model": entry.id,
            "messages": [{"role": "user", "content": "x" * PROMPT_TOKENS}],
            "max_tokens": 2048,
            "stop": STOPS,
        }
        body = msgspec.json.encode(wanted | fields)
        after = returned = 0
        while True:
            async with self.bench.pool.slot(entry, after=after) as slot:
                request = slot.upstream.request("POST", b"/v1/chat/completions", body=body)
                async with await request as response:
                    answer = await response.read()
                    if not handed_back(response):
                        return Answered(response.status, answer, returned)
                    after = slot.generation
                    returned += 1

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look all the time at what the workers have promised and who waits for whom."""
        watch = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _look(self) -> None:
        while True:
            asked = await self.bench.pool.ask_workers()
            healths = [health for health, _ in asked.values() if health is not None]
            promised = sum(health.memory.reserved_bytes for health in healths)
            assert promised <= self.budget_bytes, "more was promised than there is"
            self.most_running = max(self.most_running, sum(health.running for health in healths))
            for worker in self.bench.pool.engine().workers:
                if worker.asks is not None:
                    self.waited_for |= {(worker.id, name) for name in worker.asks.behind}
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def machine(
    folder: Path, shapes: Mapping[str, Tiny] = SHAPES, command: Sequence[str] = WORKER
) -> AsyncIterator[Machine]:
    models = {
        name: ModelSettings(source=str(tiny_model(shape)), hold_s=0.0) for name, shape in shapes.items()
    }
    async with running(folder, room=100, watch=WATCH, models=models, command=command) as bench:
        made = Machine(bench, models)
        for entry in made.models:
            await bench.pool.load(entry)
        yield made


async def test_of_two_long_rows_one_waits_for_the_end_of_the_other(tmp_path: Path) -> None:
    async with machine(tmp_path) as two:
        lack = max(two.lack_bytes(name) for name in ("a", "b"))
        assert lack > 20_000_000, "the rows are too small to tell from noise"
        await two.tighten(two.has("a") + two.has("b") + int(1.5 * lack))
        async with two.watched():
            answers = await asyncio.gather(*(two.ask(entry) for entry in two.models))
        assert [answer.status for answer in answers] == [200, 200], answers
        assert two.most_running == 1
        assert two.waited_for & {("a", "b"), ("b", "a")}, "nobody was told whom it waited for"
        kinds = two.bench.kinds()
        assert "worker.gone" not in kinds[: kinds.index("worker.asks")], "both were there all the time"
        assert kinds.count("worker.asks") >= 2 and kinds.count("worker.asked") >= 2


async def test_two_rows_that_fit_beside_no_other_model_are_both_answered(tmp_path: Path) -> None:
    """Each waited for the other's model to leave, which could not before its own row was served."""
    async with machine(tmp_path) as two:
        lack = min(two.lack_bytes(name) for name in ("a", "b"))
        await two.tighten(two.has("a") + two.has("b") + lack // 2)
        async with two.watched():
            answers = await asyncio.gather(*(two.ask(entry) for entry in two.models))
        assert [answer.status for answer in answers] == [200, 200], answers
        assert two.most_running == 1
        assert two.bench.kinds().count("worker.gone") >= 1, "none could leave for the other"


async def test_answers_that_become_longer_than_foreseen_keep_to_the_budget(tmp_path: Path) -> None:
    """They took what they needed without asking, and both together more than there is."""
    fields: dict[str, object] = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": GROWN_TOKENS,
        "temperature": 0,
        "stop": None,
    }
    async with machine(tmp_path, WIDE, SHORTSIGHTED) as two:
        # Both have room to begin, and one at a time for its end.
        begun = [two.needed_bytes(name, 256 * WIDE_TOKEN_BYTES) for name in WIDE]
        ended = [two.needed_bytes(name, 1024 * WIDE_TOKEN_BYTES) for name in WIDE]
        await two.tighten(min(begun) + max(ended) + SLACK_BYTES)
        assert sum(ended) > two.budget_bytes + 10_000_000, "they could end together"
        async with two.watched():
            answers = await asyncio.gather(*(two.ask(entry, **fields) for entry in two.models))
        kinds = two.bench.kinds()
    assert [answer.status for answer in answers] == [200, 200], answers
    assert [answer.handed_back for answer in answers] == [0, 0]
    # One of them had to wait for the other in the middle of its answer.
    assert answers[0].text == answers[1].text and len(answers[0].text) > GROWN_TOKENS // 2
    assert two.most_running == 2, "they did not run beside each other"
    assert "worker.asks" in kinds and "worker.cuts" not in kinds

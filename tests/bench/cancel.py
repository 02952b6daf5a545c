"""A client leaves in the middle of its answer: how many steps its row still takes part in."""

import asyncio
import contextlib
import time
from typing import Final

from tests.bench.report import Row, row
from tests.fixtures.tiny import Tiny

_ROWS: Final = 4
_ENDLESS: Final = 4000
_MODEL: Final = Tiny("qwen3", layers=8, hidden=256, context=8192)
"""Steps are what counts, not what they take."""


def measure(*, quick: bool) -> list[Row]:
    """A worker inside this process, so that its steps can be counted."""
    return asyncio.run(_measure(4 if quick else 12))


async def _measure(rounds: int) -> list[Row]:
    from tests.e2e.worker.serving import serving
    from worker.model.backend import prepare_backend

    prepare_backend()
    steps: list[float] = []
    waits_ms: list[float] = []
    steps_ms: list[float] = []
    async with serving(_MODEL) as worker, contextlib.AsyncExitStack() as others:
        assert worker.app is not None
        engine = worker.app._engine
        staying = []
        for number in range(_ROWS - 1):
            stay = worker.stream(f"Count to {number}", max_tokens=_ENDLESS, ignore_eos=True)
            staying.append(await others.enter_async_context(stay))
            await anext(staying[-1])
        for number in range(rounds):
            async with worker.stream(f"Sing, {number}", max_tokens=_ENDLESS, ignore_eos=True) as leaving:
                await anext(leaving)
                await anext(leaving)
                begun = time.perf_counter()
                await anext(leaving)
                # Sooner or later within a step, for each of which an event comes.
                step_s = time.perf_counter() - begun
                await asyncio.sleep(step_s * (number + 0.5) / rounds)
                before, started = engine.steps, time.perf_counter()
                if worker.app.open_replies != _ROWS:
                    raise RuntimeError("an answer ended by itself")
            async with asyncio.timeout(30):
                while worker.app.open_replies == _ROWS:  # noqa: ASYNC110  # nothing announces it
                    await asyncio.sleep(0.0005)
            waits_ms.append(1000 * (time.perf_counter() - started))
            steps_ms.append(1000 * step_s)
            steps.append(engine.steps - before)
    # A process that ends while mlx computes is aborted.
    engine._thread.join()
    return [
        row("steps until a row is free whose client has left", "", steps, goal="<= 1"),
        row("the same, against the time of a step", "ms", waits_ms, steps_ms),
    ]

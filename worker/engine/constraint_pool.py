"""Compiles constraints beside the engine: a few threads, a bounded line before them, and a cache."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from shared.errors import PublicError
from worker.engine.constraint_masks import Masks
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import Prepared, compile_spec
from worker.text.grammar.spec import Spec

_THREADS: Final = 2
_KEPT: Final = 128
_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Of sources: what a grammar takes in memory grows with it."""
_LONGEST_S: Final = 15.0


class _Job:
    """One compilation and how many requests wait for it."""

    def __init__(self, task: "asyncio.Task[Prepared]") -> None:
        self.task = task
        self.waiters = 0


class Preparation:
    """For one model. Used on the event loop; compiling is done on threads of its own, without the GIL.

    `vocabulary` makes the model's vocabulary; it is called once, on such a thread, at the first need. At most
    `reservations` requests may wait at a time. One that is cancelled gives its place back at once, and a
    compilation that nobody waits for any more is not begun.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        *,
        reservations: int = 32,
        longest_s: float = _LONGEST_S,
        compile_one: Callable[..., Prepared] = compile_spec,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._reservations = reservations
        self._longest_s = longest_s
        self._compile_one = compile_one
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="compile")
        self._free = asyncio.Semaphore(_THREADS)
        self._making = threading.Lock()
        self._masks: Masks | None = None
        self._jobs: dict[Spec, _Job] = {}
        self._kept: OrderedDict[Spec, Prepared] = OrderedDict()
        self._kept_bytes = 0
        self._reserved = 0

    @property
    def reserved(self) -> int:
        """Requests that wait for a compilation."""
        return self._reserved

    async def masks(self) -> Masks:
        """The masks of the model, which the controls of its rows need. Raises PublicError 501."""
        if self._masks is None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._made)
        assert self._masks is not None
        return self._masks

    async def prepare(self, spec: Spec) -> Prepared:
        """Compile, or take what was compiled before.

        Raises PublicError: 400 for what can't be compiled, 429 when too many wait, 501 when this model's
        tokenizer can't be constrained.
        """
        known = self._kept.get(spec)
        if known is not None:
            self._kept.move_to_end(spec)
            return known
        if self._reserved >= self._reservations:
            raise PublicError(
                429,
                "queue_full",
                f"{self._reserved} requests are waiting for their output's structure to be compiled; "
                "try again later.",
                retry_after_s=1,
            )
        job = self._jobs.get(spec)
        if job is None:
            job = self._jobs[spec] = _Job(asyncio.create_task(self._run(spec)))
        self._reserved += 1
        job.waiters += 1
        try:
            # Others may wait for it too, so that one who leaves must not cancel it.
            return await asyncio.shield(job.task)
        finally:
            self._reserved -= 1
            job.waiters -= 1
            if not job.waiters:
                job.task.cancel()
                if self._jobs.get(spec) is job:
                    del self._jobs[spec]

    def close(self) -> None:
        """Begin nothing more. A compilation under way ends by itself."""
        for job in self._jobs.values():
            job.task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, spec: Spec) -> Prepared:
        await self._free.acquire()
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._compile, spec)
        # A thread can't be stopped, so its place is free when it is done, not when nobody waits any more.
        work.add_done_callback(partial(_release, self._free))
        try:
            async with asyncio.timeout(self._longest_s):
                prepared = await asyncio.shield(work)
        except TimeoutError:
            raise PublicError(
                400,
                "invalid_schema" if spec.kind == "json_schema" else "invalid_grammar",
                f"It takes longer than {self._longest_s:g} s to compile; make it simpler.",
                param=spec.param,
            ) from None
        self._keep(spec, prepared)
        return prepared

    def _compile(self, spec: Spec) -> Prepared:
        return self._compile_one(spec, self._made().vocabulary)

    def _made(self) -> Masks:
        with self._making:
            if self._masks is None:
                self._masks = Masks(self._make_vocabulary())
            return self._masks

    def _keep(self, spec: Spec, prepared: Prepared) -> None:
        self._kept[spec] = prepared
        self._kept_bytes += len(spec.source)
        while len(self._kept) > _KEPT or self._kept_bytes > _KEPT_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.source)


def _release(free: asyncio.Semaphore, work: "asyncio.Future[Prepared]") -> None:
    free.release()
    if not work.cancelled():
        # Whoever waited has it already; without a look asyncio would report it as lost.
        work.exception()

"""The engine: the one thread that owns mlx.

Arrays are made, evaluated and freed on this thread alone; the event loop talks to it with commands, which run
between two steps, and hears one report per step for all rows.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeVar

import mlx.core as mx

from worker.engine.batch import Batch
from worker.engine.rows import Output, Report, Row
from worker.engine.speculation import Counts

log = logging.getLogger(__name__)

T = TypeVar("T")

_FAILED_STEPS_IN_A_ROW: Final = 3
"""After so many the engine is taken to be broken, not the rows."""
_KV_READING_S: Final = 0.5
_REST_S: Final = 2.0
"""An engine without rows for so long has no use for the memory that mlx keeps for reuse."""

_BREATH_S: Final = 0.005
"""Between two pieces of a chore, so that it does not take a core from anyone."""


class Listener(Protocol):
    """Who hears of the engine; called on the event loop."""

    def on_report(self, report: Report) -> None: ...
    def on_death(self, error: BaseException) -> None: ...


class Engine:
    """Starts its thread at once, and listens to one event loop from `attach` on.

    But for `prepare`, all methods are for that loop's thread.
    """

    _loop: asyncio.AbstractEventLoop
    _listener: Listener

    def __init__(self) -> None:
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._batch: Batch | None = None
        self._open = False
        self._removed: list[int] = []
        self._failed: list[int] = []
        self._running = True
        self._kv_read_at = 0.0
        self.chore: Callable[[bool], bool] = lambda resting: False
        """Something to do a little of between two steps, and all of while the engine rests. It is called on
        the engine's thread and tells whether there is more of it."""
        self.select: Callable[[str], None] = lambda adapter: None
        """Puts the adapter with this identity in place. Called on the engine's thread before each row."""
        self.steps = 0
        """Steps taken since the start. Written by the engine's thread, read by anyone."""
        self.tokens = 0
        """Generated since the start."""
        self.kv_bytes = 0
        """KV cache of the rows in the batch, read now and then."""
        # A daemon: a step that never ends must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def prepare(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine's thread before everything that is asked later. It must not raise."""
        self._commands.put(work)

    def attach(self, listener: Listener) -> None:
        """Tell `listener` on this thread's running loop."""
        self._loop, self._listener = asyncio.get_running_loop(), listener

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the engine's thread, between two steps."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def command() -> None:
            try:
                result = work()
            except Exception as error:
                self._tell(settle, None, error)
            else:
                self._tell(settle, result, None)

        self._commands.put(command)
        return future

    def open(self, make_batch: Callable[[], Batch | None]) -> asyncio.Future[None]:
        """Begin to serve with the batch that `make_batch`, called on the engine's thread, returns.

        Without one there are no rows, only what is asked for with `call`.
        """

        def work() -> None:
            self._batch = make_batch()
            self._open = True

        return self.call(work)

    def insert(self, row: Row) -> None:
        """Add a row; its tokens come with the reports."""

        def command() -> None:
            assert self._batch is not None
            try:
                self.select(row.adapter)
                self._batch.insert(row)
            except Exception:
                log.exception("row %d could not be started", row.id)
                self._failed.append(row.id)

        self._commands.put(command)

    def allow(self, row: int, tokens: int) -> None:
        """Let a row have so many tokens, with its prompt, unless it is out already."""

        def command() -> None:
            if self._batch is not None:
                self._batch.allow(row, tokens)

        self._commands.put(command)

    def bound_scores(self, most_scores: int) -> None:
        """From now on compare no more than so many pairs of tokens in a step; see Batch."""

        def command() -> None:
            if self._batch is not None:
                self._batch.most_scores = most_scores

        self._commands.put(command)

    def remove(self, row: int) -> None:
        """Take a row out before the next step; a report names it, unless it ended by itself before."""

        def command() -> None:
            if self._batch is not None and self._batch.remove(row):
                self._removed.append(row)

        self._commands.put(command)

    def forget(self, family: int) -> None:
        """Let go of what rows of this family would share; none will come any more."""

        def command() -> None:
            if self._batch is not None:
                self._batch.forget(family)

        self._commands.put(command)

    @property
    def speculated(self) -> Counts | None:
        """What became of the draft's proposals; None without a draft. May be read on any thread."""
        return None if self._batch is None else self._batch.speculated

    @property
    def width(self) -> int:
        """Of the logits; 0 before the batch is there."""
        return 0 if self._batch is None else self._batch.width

    def forget_draft(self) -> int:
        """Free what the draft holds of a row; bytes freed. Only on the engine's thread, within a `call`."""
        return 0 if self._batch is None else self._batch.forget_draft()

    def stop(self) -> None:
        """End the thread after the step it is in."""

        def command() -> None:
            self._running = False

        self._commands.put(command)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody listens any more.
            self._running = False

    def _run(self) -> None:
        try:
            failures = 0
            while self._running:
                self._obey()
                # Who was taken out has its place free now, not after a step.
                self._report([])
                outputs: list[Output] = []
                if self._batch is not None and len(self._batch):
                    try:
                        outputs = self._batch.step()
                        failures = 0
                    except Exception:
                        log.exception("an engine step failed")
                        failures += 1
                        if failures == _FAILED_STEPS_IN_A_ROW:
                            raise
                        self._failed += self._batch.reset()
                    self.steps += 1
                    self.tokens += len(outputs)
                    self._read_kv(self._batch)
                self._report(outputs)
                if self._batch is not None:
                    self._batch.settle()
                    self.chore(False)
        except BaseException as error:  # whatever it was, the process must not outlive its engine
            self._tell(self._listener.on_death, error)

    def _report(self, outputs: list[Output]) -> None:
        """Tell of what there is to tell."""
        if outputs or self._removed or self._failed:
            cached = () if self._batch is None else self._batch.cached()
            self._tell(self._listener.on_report, Report(outputs, self._removed, self._failed, cached))
            self._removed, self._failed = [], []

    def _obey(self) -> None:
        """Carry out what was asked; wait for it when there is nothing to do."""
        idle = self._batch is None or not len(self._batch)
        if idle and not self._removed and not self._failed:
            self._wait()
        while self._running:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _wait(self) -> None:
        """Sleep until something is asked; after a while of that give the allocator's cache back."""
        if self._open:
            if self._batch is not None:
                self._read_kv(self._batch, now=True)
            timeout_s: float | None = _REST_S
            while timeout_s is not None:
                try:
                    command = self._commands.get(timeout=timeout_s)
                except Empty:
                    mx.clear_cache()
                    timeout_s = _BREATH_S if self.chore(True) else None
                else:
                    command()
                    return
        self._commands.get()()

    def _read_kv(self, batch: Batch, *, now: bool = False) -> None:
        clock = time.monotonic()
        if now or clock - self._kv_read_at >= _KV_READING_S:
            self._kv_read_at = clock
            self.kv_bytes = batch.kv_bytes

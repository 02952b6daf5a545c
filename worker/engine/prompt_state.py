"""The event loop's side of the prompt cache and of what is saved of it."""

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import mlx.core as mx

from shared.admin import CacheStats, SavedStats
from worker.engine.host_state import HostState, StateError, unpack
from worker.engine.prompt_cache import Entry, PromptCache, as_tokens
from worker.engine.saved_state import Saved, SavedState, default_budget
from worker.engine.saver import Saver
from worker.engine.thread import Engine
from worker.model.identity import identity_of

log = logging.getLogger(__name__)

_WORTH_READING: Final = 64
"""Tokens that a state on disk must have beyond those in memory."""
_AT_ONCE_BYTES: Final = 256 * 2**20
"""Copied between two commands to the engine while no row needs it."""
_FLUSH_S: Final = 5.0
"""What trimming waits for the disk, because until then the memory is only half free."""


class PromptState:
    """Everything that is kept of earlier prompts, in memory and on disk."""

    def __init__(self, engine: Engine, cache: PromptCache, *, room_bytes: int, cuttable: bool) -> None:
        """`room_bytes` are for running rows and for what is kept, together."""
        self.cache = cache
        self.cuttable = cuttable
        """Whether the model's state can be cut back to any shorter prefix."""
        self._room_bytes = room_bytes
        self.saver: Saver | None = None
        self._engine = engine
        self._saved: SavedState | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="restore")

    async def open(self, root: Path, model: Path, computed: str, budget_bytes: int | None) -> None:
        """Keep the state of the model in folder `model` under `root` from now on; see `identity_of`.

        A folder that can't be used is no reason to fail.
        """

        def work() -> SavedState:
            identity = identity_of(model, computed=computed)
            saved = SavedState(root, identity, budget_bytes=budget_bytes or default_budget(root))
            saved.open()
            return saved

        loop = asyncio.get_running_loop()
        try:
            self._saved = await loop.run_in_executor(self._reader, work)
        except OSError as error:
            log.warning("no prompt state is saved: %s", error.strerror or error)
            return
        self.saver = Saver(self.cache, self._saved)

    async def restore(self, prompt: list[int], *, adapter: str, session: str | None) -> None:
        """Bring what is on disk of `prompt` into memory, if that has more of it."""
        saved = self._saved
        if saved is None or not saved.entries or len(prompt) <= _WORTH_READING:
            return

        def read() -> tuple[Saved, HostState] | None:
            tokens = as_tokens(prompt)
            have = self.cache.reusable(tokens, adapter) + _WORTH_READING - 1
            found = saved.find(tokens, adapter=adapter, session=session, longer_than=have)
            if found is None or found.nbytes > self.cache.limit_bytes:
                return None
            host = saved.read(found)
            return None if host is None else (found, host)

        loop = asyncio.get_running_loop()
        if (got := await loop.run_in_executor(self._reader, read)) is None:
            return
        found, host = got

        def make() -> None:
            started = time.monotonic()
            try:
                state = unpack(host)
            except StateError as error:
                saved.reject(found, error)
                return
            self.cache.put(Entry(found.tokens, state, adapter, session or found.session, saved=True))
            saved.counts.restore_s += time.monotonic() - started

        await self._engine.call(make)

    def chore(self, resting: bool) -> bool:
        """On the engine's thread: save a piece of what is evicted, and of all there is while it rests.

        Whether there is more to do.
        """
        saver = self.saver
        if saver is None:
            return False
        try:
            return saver.step(everything=resting)
        except Exception:
            # Nobody's answer depends on it; trying again each step would help nobody either.
            log.exception("saving prompt state failed; it is given up")
            self.saver = None
            return False

    def make_room(self, rows_bytes: int) -> None:
        """Rows that will hold so many bytes are about to run: what is kept makes way for them."""
        left = self._room_bytes - rows_bytes
        if self.cache.nbytes > left:
            self._engine.call(lambda: self.cache.shrink(left))

    def resize(self, room_bytes: int, prompt_bytes: int) -> None:
        """From now on there are so many bytes for rows and what is kept, and `prompt_bytes` of them at most
        for what is kept."""
        self._room_bytes = room_bytes
        if prompt_bytes != self.cache.limit_bytes:
            self._engine.call(lambda: self.cache.resize(prompt_bytes))

    async def save(self, timeout_s: float) -> bool:
        """Write all that is worth it to disk; whether it was done in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(everything=True)
        except TimeoutError:
            log.warning("there was no time to save all prompt state")
            return False
        return True

    async def _write(self, *, everything: bool) -> None:
        saver, saved = self.saver, self._saved
        if saver is None or saved is None:
            return
        while await self._engine.call(lambda: saver.step(_AT_ONCE_BYTES, everything=everything)):
            if saved.backlogged:
                await asyncio.wrap_future(saved.flush())
        await asyncio.wrap_future(saved.flush())

    async def trim(self, wanted_bytes: int | None) -> int:
        """Free so many bytes, or all there is to free: the allocator's cache, then what was used longest ago.

        Returns bytes freed. What is evicted goes to disk first.
        """

        def evict() -> int:
            # The allocator's cache can only be dropped whole, so `wanted_bytes` is met or it is empty.
            freed = 0 if wanted_bytes == 0 else self._engine.forget_draft() + _clear()
            if wanted_bytes is None:
                return freed + self.cache.shrink(0)
            return freed + self.cache.shrink(self.cache.nbytes - max(0, wanted_bytes - freed))

        freed = await self._engine.call(evict)
        if wanted_bytes != 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._write(everything=False)
            await self._engine.call(_clear)
        return freed

    @property
    def nbytes(self) -> int:
        """What is kept in memory, with what is evicted and not copied yet."""
        return self.cache.nbytes + (0 if self.saver is None else self.saver.leaving_bytes)

    def stats(self) -> CacheStats:
        cache, counts = self.cache, self.cache.counts
        return CacheStats(
            entries=len(cache),
            bytes=cache.nbytes,
            limit_bytes=cache.limit_bytes,
            hits=counts.hits,
            misses=counts.misses,
            session_hits=counts.session_hits,
            reused_tokens=counts.reused_tokens,
            evictions=counts.evictions,
            saved=None if self._saved is None else _saved_stats(self._saved),
        )

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)
        if self._saved is not None:
            self._saved.close()


def _clear() -> int:
    before = mx.get_cache_memory()
    mx.clear_cache()
    return int(before - mx.get_cache_memory())


def _saved_stats(saved: SavedState) -> SavedStats:
    counts = saved.counts
    return SavedStats(
        entries=saved.entries,
        bytes=saved.nbytes,
        limit_bytes=saved.budget_bytes,
        spills=counts.spills,
        restores=counts.restores,
        restore_s=counts.restore_s,
        dropped=counts.dropped,
        failed=counts.failed,
    )

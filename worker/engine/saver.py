"""Which prompt state goes to disk, and when: what is evicted, what is there when the engine rests, and all of
it before the worker ends.

Runs on the engine's thread, which copies the numbers out of mlx a piece at a time; the rest happens on the
writer's own thread.
"""

import logging
from collections import deque
from typing import Final

from worker.engine.host_state import Packing, StateError
from worker.engine.prompt_cache import Entry, PromptCache
from worker.engine.saved_state import SavedState, Unsaved

log = logging.getLogger(__name__)

WORTH_SAVING: Final = 64
"""Fewer tokens are computed as quickly as they are read."""
PIECE_BYTES: Final = 16 * 2**20
"""Copied between two steps while rows run: a few milliseconds."""
_LEAVING_BYTES: Final = 2**30
"""Evicted state that may wait to be copied: it takes the memory that it was evicted from."""


class Saver:
    """For one prompt cache."""

    def __init__(self, cache: PromptCache, saved: SavedState) -> None:
        self._cache = cache
        self._saved = saved
        self._leaving: deque[Entry] = deque()
        self.leaving_bytes = 0
        """Held by evicted entries that wait to be copied."""
        self._packing: tuple[Entry, Packing] | None = None
        cache.on_evict = self._evicted

    def _evicted(self, entry: Entry) -> None:
        if not self._worth(entry):
            return
        if self.leaving_bytes + entry.nbytes > _LEAVING_BYTES:
            self._saved.counts.dropped += 1
            return
        self._leaving.append(entry)
        self.leaving_bytes += entry.nbytes

    def _worth(self, entry: Entry) -> bool:
        if entry.saved or len(entry.tokens) < WORTH_SAVING:
            return False
        if self._saved.has(entry.tokens, entry.adapter):
            entry.saved = True
        return not entry.saved

    def step(self, most_bytes: int = PIECE_BYTES, *, everything: bool = False) -> bool:
        """Copy about `most_bytes` of what is evicted, or of `everything`; whether there is more to do."""
        if self._packing is None and not self._begin(everything=everything):
            return False
        if self._saved.backlogged:
            return True
        assert self._packing is not None
        entry, packing = self._packing
        host = packing.step(most_bytes)
        if host is not None:
            self._packing = None
            self._saved.write(Unsaved(entry.tokens, entry.adapter, entry.session, entry.trimmable, host))
        return True

    def _begin(self, *, everything: bool) -> bool:
        while (entry := self._next(everything=everything)) is not None:
            # From here on it is as good as saved: if the disk refuses, it would the next time too.
            entry.saved = True
            try:
                self._packing = entry, Packing(entry.state)
            except StateError as error:
                self._saved.counts.dropped += 1
                log.info("prompt state of this model is not saved: %s", error)
                continue
            return True
        return False

    def _next(self, *, everything: bool) -> Entry | None:
        if self._leaving:
            entry = self._leaving.popleft()
            self.leaving_bytes -= entry.nbytes
            return entry
        if everything:
            # The last used first: if the worker is killed meanwhile, that is what is missed most.
            waiting = [entry for entry in self._cache.entries() if self._worth(entry)]
            return max(waiting, key=lambda entry: entry.used_s, default=None)
        return None

"""Prompt state kept for the next turn: longest-prefix reuse under a cap of bytes.

mlx-lm's own `LRUPromptCache` looks for a longer entry by walking all that begins alike, forgets what was used
in favour of what came in, and does not say what it drops. Here entries are few and large, so each is compared
with the prompt; what is used is kept, a conversation's own state longest, and what leaves is handed on.
"""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from mlx_lm.models.cache import CacheList, can_trim_prompt_cache, trim_prompt_cache

SHORTEST: Final = 16
"""Fewer tokens than this are not worth keeping, nor finding: computing them takes no longer."""
SESSION_S: Final = 600.0
"""A conversation that names its session is kept as if it had been used so much later."""
_HEAD: Final = 64
"""Tokens compared first: most entries differ from a prompt early."""

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]


def as_tokens(tokens: Sequence[int]) -> Tokens:
    return np.asarray(tokens, dtype=np.int32)


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(one), len(other))
    for start, end in ((0, min(_HEAD, length)), (_HEAD, length)):
        if start < end:
            differing = one[start:end] != other[start:end]
            if differing.any():
                return start + int(differing.argmax())
    return length


@dataclass(eq=False)
class Entry:
    """The state after `tokens`: one cache for each layer, of one row, evaluated and never written to."""

    tokens: Tokens
    state: list[Any]
    adapter: str = ""
    session: str | None = None
    saved: bool = False
    """Whether it is on disk, or never will be."""
    used_s: float = 0.0
    nbytes: int = field(init=False)
    trimmable: bool = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(int(layer.nbytes) for layer in self.state)
        self.trimmable = bool(can_trim_prompt_cache(self.state))

    def usable(self, prompt: Tokens) -> int:
        """How many tokens of `prompt` need no computing with this entry; at least one is left to compute."""
        common = common_prefix(self.tokens, prompt[:-1])
        return common if self.trimmable or common == len(self.tokens) else 0


@dataclass(frozen=True)
class Hit:
    """State to begin with: what `cached` tokens of the prompt left in the caches. Not to be written to."""

    cached: int
    state: list[Any]


@dataclass
class Counts:
    """What happened since the start."""

    hits: int = 0
    misses: int = 0
    session_hits: int = 0
    """Hits on an entry of the same session."""
    evictions: int = 0
    reused_tokens: int = 0


class PromptCache:
    """Written on the engine's thread alone; `reusable` and the figures may be read on any."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        on_evict: Callable[[Entry], None] = lambda entry: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.counts = Counts()
        self.nbytes = 0
        self.on_evict = on_evict
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """All entries as they are now."""
        with self._lock:
            return list(self._entries)

    def reusable(self, prompt: Tokens, adapter: str = "") -> int:
        """How many tokens of `prompt` the best entry has."""
        return max((e.usable(prompt) for e in self.entries() if e.adapter == adapter), default=0)

    def find(
        self, prompt: Tokens, *, adapter: str = "", session: str | None = None, end: int = 1
    ) -> Hit | None:
        """The state of the longest prefix of `prompt` that is here; counts a hit or a miss.

        Where all of it is here, all but its `end` is taken if that can be done.
        """
        best, length = None, SHORTEST - 1
        for entry in self._entries:
            if entry.adapter == adapter:
                usable = entry.usable(prompt)
                # Of equally good ones the conversation's own, so that it is its own that stays.
                if usable > length or (usable == length and best is not None and entry.session == session):
                    best, length = entry, usable
        if best is not None and best.trimmable and length == len(prompt) - 1:
            length = len(prompt) - end
        if best is None or length < SHORTEST:
            self.counts.misses += len(prompt) > SHORTEST
            return None
        best.used_s = self._clock()
        self.counts.hits += 1
        self.counts.reused_tokens += length
        if session is not None and best.session == session:
            self.counts.session_hits += 1
        return Hit(length, trimmed(best.state, len(best.tokens) - length))

    def note_living(self, tokens: int) -> None:
        """So many tokens were taken from a row that still runs."""
        self.counts.hits += 1
        self.counts.reused_tokens += tokens

    def wants(
        self,
        tokens: Tokens,
        nbytes: int,
        *,
        adapter: str = "",
        session: str | None = None,
        to_go_on: bool = False,
    ) -> bool:
        """Whether `put` would keep such an entry. When another has all of it, that one is used again."""
        if len(tokens) < SHORTEST or (nbytes > self.limit_bytes and not to_go_on):
            return False
        for entry in self._entries:
            has_all = entry.adapter == adapter and common_prefix(entry.tokens, tokens) == len(tokens)
            if has_all and (entry.trimmable or len(entry.tokens) == len(tokens)):
                entry.used_s = self._clock()
                entry.session = session or entry.session
                return False
        return True

    def put(self, entry: Entry, *, to_go_on: bool = False) -> None:
        """Keep `entry`; what it makes needless goes, and what no longer fits is evicted.

        With `to_go_on` it is of a row that stopped for want of memory: it takes what that has left, beyond
        the limit if need be.
        """
        if not self.wants(
            entry.tokens, entry.nbytes, adapter=entry.adapter, session=entry.session, to_go_on=to_go_on
        ):
            return
        entry.used_s = self._clock()
        if entry.session is not None:
            for other in self._entries:
                if other.session == entry.session and other.adapter == entry.adapter:
                    # The conversation went on: only its latest state is preferred.
                    other.session = None
        if entry.trimmable:
            for other in self.entries():
                length = len(other.tokens)
                if (
                    other.adapter == entry.adapter
                    and length < len(entry.tokens)
                    and common_prefix(other.tokens, entry.tokens) == length
                ):
                    self._drop(other)
        with self._lock:
            self._entries.append(entry)
            self.nbytes += entry.nbytes
        self.shrink(max(self.limit_bytes, entry.nbytes) if to_go_on else self.limit_bytes)

    def resize(self, limit_bytes: int) -> None:
        """Keep no more than so many bytes from now on."""
        self.limit_bytes = limit_bytes
        self.shrink(limit_bytes)

    def shrink(self, to_bytes: int) -> int:
        """Evict entries, those unused for longest first, until `to_bytes` are held; returns bytes freed."""
        before = self.nbytes
        while self.nbytes > max(0, to_bytes):
            oldest = min(self._entries, key=self._rank)
            self._drop(oldest)
            self.counts.evictions += 1
            self.on_evict(oldest)
        return before - self.nbytes

    def forget(self, adapter: str) -> None:
        """Drop what was computed with this adapter: it is gone, or has changed."""
        for entry in self.entries():
            if entry.adapter == adapter:
                self._drop(entry)

    def _rank(self, entry: Entry) -> float:
        return entry.used_s + (SESSION_S if entry.session is not None else 0.0)

    def _drop(self, entry: Entry) -> None:
        with self._lock:
            self._entries.remove(entry)
            self.nbytes -= entry.nbytes


def trimmed(state: list[Any], tokens: int) -> list[Any]:
    """The caches without their last `tokens`. Arrays are shared: a batch copies what it takes from them."""
    if not tokens:
        return state
    shallow = [_shallow(layer) for layer in state]
    trim_prompt_cache(shallow, tokens)
    return shallow


def _shallow(layer: Any) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*map(_shallow, layer.caches))
    return copy.copy(layer)

"""The masks of a batch: filled together, once a step, and applied to all its logits at once."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import mlx.core as mx
import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from worker.engine.constraint_tokens import Bits, Vocabulary

Apply = Callable[[Any, Bits], Any]
"""(rows, width) logits and (rows, words) masks to logits that are -inf where a token is not allowed."""

_TOGETHER: Final = 4
"""From so many grammars on, threads fill the masks sooner than one does."""
_THREADS: Final = 4


class Masked(Protocol):
    """What the masks ask of a row; see Control."""

    @property
    def bound(self) -> bool: ...
    @property
    def forced(self) -> int | None: ...
    @property
    def matcher(self) -> LLMatcher | None: ...
    @property
    def also(self) -> Bits | None: ...
    def note_failure(self) -> None: ...


class Masks:
    """For one model. Only the engine's thread uses it; its buffer is reused by every step."""

    def __init__(self, vocabulary: Vocabulary, *, apply: Apply | None = None) -> None:
        self.vocabulary = vocabulary
        self._bits = np.empty((0, vocabulary.words), np.int32)
        self._executor = LLExecutor(min(_THREADS, os.cpu_count() or 1))
        self._apply = apply

    def fill(self, rows: Sequence[Masked | None]) -> Bits | None:
        """The masks of all rows, in their order; None when every row may say anything."""
        if not any(control is not None and control.bound for control in rows):
            return None
        if len(rows) > len(self._bits):
            self._bits = np.empty((len(rows), self.vocabulary.words), np.int32)
        bits = self._bits[: len(rows)]
        matchers: list[tuple[LLMatcher, int]] = []
        for index, control in enumerate(rows):
            if control is None or not control.bound:
                bits[index] = -1
            elif control.forced is not None:
                bits[index] = self.vocabulary.bits((control.forced,))
            elif control.matcher is not None:
                matchers.append((control.matcher, index))
            else:
                bits[index] = ~self.vocabulary.end_bits
        self._fill_grammars(matchers, bits)
        for index, control in enumerate(rows):
            if control is None:
                continue
            control.note_failure()
            if control.forced is None and control.also is not None:
                bits[index] |= control.also
        return bits

    def _fill_grammars(self, matchers: list[tuple[LLMatcher, int]], bits: Bits) -> None:
        if len(matchers) >= _TOGETHER:
            fill_next_token_bitmask_par(self._executor, matchers, bits)
        else:
            for matcher, index in matchers:
                fill_next_token_bitmask(matcher, bits, index)

    def apply(self, logits: Any, bits: Bits) -> Any:
        """(rows, width) logits with what is not allowed at -inf."""
        if self._apply is None:
            # Not before the first use: a kernel is compiled for the thread that computes.
            self._apply = apply_on_metal if mx.metal.is_available() and _works_on_metal() else apply_anywhere
        return self._apply(logits, bits)


def apply_anywhere(logits: Any, bits: Bits) -> Any:
    """By numpy's unpacking, for devices that llguidance has no kernel for."""
    rows, width = logits.shape
    bytes_ = bits.view(np.uint8).reshape(rows, -1)
    allowed = np.unpackbits(bytes_, axis=1, count=width, bitorder="little").view(np.bool_)
    return mx.where(mx.array(allowed), logits, mx.array(-mx.inf, logits.dtype))


def _works_on_metal() -> bool:
    """Whether llguidance's kernel compiles here and does what it should."""
    logits = mx.arange(66, dtype=mx.float32).reshape(2, 33)
    bits = np.array([[0x5, 1], [-1, 0]], np.int32)
    try:
        return bool(mx.array_equal(apply_on_metal(logits, bits), apply_anywhere(logits, bits)).item())
    # Whatever a driver or a compiler raises: without the kernel it works as well.
    except Exception:
        logging.getLogger(__name__).warning("masks are applied without the Metal kernel", exc_info=True)
        return False


def apply_on_metal(logits: Any, bits: Bits) -> Any:
    """By llguidance's kernel, which reads the packed masks."""
    from llguidance.mlx import apply_token_bitmask

    return apply_token_bitmask(logits, bits)

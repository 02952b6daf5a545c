"""mlx-lm's BatchGenerator, with our own way of taking prompts in.

mlx-lm computes a prompt's last token in a pass of its own, which reads all weights once more, and copies the
state of whatever goes on to decode several times. Here a prompt's end is computed in one pass with its last
token, and state moves on as it is where nothing of it stays behind.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch
from mlx_lm.models.cache import BatchKVCache, KVCache

from worker.engine.constraint_batch import ConstrainedRows

END: Final = 32
"""Tokens computed with the last one of a prompt. The logits of all of them are computed, and but one thrown
away: for many that would take longer than a pass for the last token alone."""

Piece: TypeAlias = PromptProcessingBatch.Response
"""What was computed of one prompt: `progress` is (tokens done, tokens in all)."""


class Prompts(PromptProcessingBatch):  # type: ignore[misc]  # mlx-lm has no types
    """Prompts that are computed together, whose rows then decode in a batch of the class `rows`."""

    rows = ConstrainedRows
    uids: list[int]
    tokens: list[list[int]]
    samplers: list[Any]
    logits_processors: list[Any]
    stop_sequences: list[Any]
    max_tokens: list[int]

    def __init__(self, model: Any, uids: list[int], caches: Sequence[list[Any]], **options: Any) -> None:
        super().__init__(model, uids, [], **options)
        self.prompt_cache = [_merged(layers) for layers in zip(*caches, strict=True)]

    def generate(self, tokens: list[list[int]]) -> ConstrainedRows:
        """Compute what is left of the prompts, of all as much, and begin to decode. Nothing stays here."""
        logits = self.model(mx.array(tokens), cache=self.prompt_cache)[:, -1:]
        for known, new in zip(self.tokens, tokens, strict=True):
            known += new[:-1]
        rows = self.rows(
            # What it would compute first is there already.
            lambda inputs, cache: logits,
            self.uids,
            mx.array([prompt[-1] for prompt in tokens]),
            self.prompt_cache,
            self.tokens,
            self.samplers,
            self.fallback_sampler,
            self.logits_processors,
            self.stop_sequences,
            self.max_tokens,
        )
        rows.model = self.model
        self.uids, self.prompt_cache, self.tokens = [], [], []
        self.samplers, self.logits_processors = [], []
        self.stop_sequences, self.max_tokens = [], []
        return rows


def _merged(layers: Sequence[Any]) -> Any:
    """One layer's caches of several rows as that of a batch."""
    first = layers[0]
    if len(layers) > 1 or type(first) is not KVCache or first.empty():
        return first.merge(list(layers))
    # A view: mlx-lm would copy it twice, and the first token that is added copies it anyway.
    batch = BatchKVCache([0])
    batch.keys, batch.values = first.keys[..., : first.offset, :], first.values[..., : first.offset, :]
    batch.offset += first.offset
    batch._idx = first.offset
    return batch


class RowGenerator(BatchGenerator):  # type: ignore[misc]
    """Rows may be constrained, by a Control among their logits processors."""

    prompts = Prompts
    _currently_processing: list[list[Any]]
    """Of each prompt in the batch: the parts of it that are left, tokens done, tokens in all."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.computed = (0, 0.0)
        """Tokens of prompts that the last step has computed, and the seconds that took."""
        # These two live as long as the generator: every other batch is merged into them or split off them.
        self._prompt_batch = self.prompts.empty(
            self.model, self.sampler, prefill_step_size=self.prefill_step_size
        )
        self._generation_batch = self.prompts.rows.empty(self.model, self.sampler)

    def insert_segments(self, segments: list[list[list[int]]], *options: Any, **named: Any) -> list[int]:
        """As mlx-lm's; the state before the last token can be taken only where that is its own segment."""
        uids: list[int] = super().insert_segments(segments, *options, **named)
        waiting = list(self._unprocessed_sequences)[-len(uids) :]
        for given, (_, parts, *_) in zip(segments, waiting, strict=True):
            if len(given[-1]) > 1:
                last = parts.pop()
                parts[-1] = parts[-1] + last
        return uids

    @property
    def reach(self) -> int:
        """Tokens of the furthest prompt that the next piece of it looks back at."""
        to_come = (len(tokens) for _, _, _, _, tokens, *_ in self._unprocessed_sequences)
        return max((*map(len, self._prompt_batch.tokens), *to_come), default=0)

    def allow(self, uid: int, max_tokens: int) -> None:
        """Let a row that decodes say so many tokens, all in all."""
        rows = self._generation_batch
        if uid in rows.uids:
            rows.max_tokens[rows.uids.index(uid)] = max_tokens

    def _next(self) -> tuple[list[Piece], list[Any]]:
        """One token of every row that decodes, and `prefill_step_size` tokens of every prompt."""
        said = self._decode()
        room = self.completion_batch_size - len(self._generation_batch)
        if room <= 0:
            return [], said
        places = min(self.prefill_batch_size - len(self._prompt_batch), room)
        if places > 0 and self._unprocessed_sequences:
            self._prompt_batch.extend(self._make_batch(min(places, len(self._unprocessed_sequences))))
        return [*self._finish(), *self._compute()], said

    def _decode(self) -> list[Any]:
        if not len(self._generation_batch):
            return []
        said: list[Any] = self._generation_batch.next()
        self._counters.generation_tokens += len(said)
        self._counters.generation_steps += 1
        if self._counters.generation_steps % 512 == 0:
            mx.clear_cache()
        return said

    def _make_batch(self, n: int) -> Prompts:
        taken = [self._unprocessed_sequences.popleft() for _ in range(n)]
        uids, parts, most, caches, tokens, samplers, processors, endings = map(list, zip(*taken, strict=True))
        self._currently_processing += [[part, 0, sum(map(len, part))] for part in parts]
        return self.prompts(
            self.model,
            uids,
            caches,
            tokens=tokens,
            prefill_step_size=self.prefill_step_size,
            samplers=samplers,
            fallback_sampler=self.sampler,
            logits_processors=processors,
            stop_sequences=endings,
            max_tokens=most,
        )

    def _finish(self) -> list[Piece]:
        """Let the prompts decode that have but an end left, as many as have equally much."""
        ends = {
            index: parts[0]
            for index, (parts, _, _) in enumerate(self._currently_processing)
            if len(parts) == 1 and len(parts[0]) <= max(1, min(END, self.prefill_step_size))
        }
        if len({len(end) for end in ends.values()}) > 1:
            ends = {index: end for index, end in ends.items() if len(end) == 1}
        if not ends:
            return []
        staying = [state for index, state in enumerate(self._currently_processing) if index not in ends]
        totals = [self._currently_processing[index][2] for index in ends]
        self._currently_processing = staying
        self._counters.prompt_tokens += sum(len(end) - 1 for end in ends.values())
        batch = self._prompt_batch.split(list(ends)) if staying else self._prompt_batch
        rows = batch.generate(list(ends.values()))
        uids = list(rows.uids)
        self._generation_batch.extend(rows)
        return [Piece(uid, (total, total), True, True) for uid, total in zip(uids, totals, strict=True)]

    def _compute(self) -> list[Piece]:
        """Some more of every prompt, its last token left out."""
        pieces, chunks = [], []
        alone = len(self._currently_processing) == 1
        for uid, state in zip(self._prompt_batch.uids, self._currently_processing, strict=True):
            parts = state[0]
            length = len(parts[0])
            if len(parts) == 1:
                # Several rarely have equally much left, and then end with the last token.
                length -= END if alone and length > END else 1
            size = min(length, self.prefill_step_size)
            chunks.append(parts[0][:size])
            parts[0] = parts[0][size:]
            over = not parts[0]
            if over:
                del parts[0]
            state[1] += size
            pieces.append(Piece(uid, (state[1], state[2]), over, False))
        started = time.monotonic()
        self._prompt_batch.prompt(chunks)
        self.computed = sum(map(len, chunks)), time.monotonic() - started
        self._counters.prompt_tokens += self.computed[0]
        self._counters.prompt_time += self.computed[1]
        return pieces

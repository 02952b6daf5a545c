"""The running batch, on mlx-lm's BatchGenerator. Everything here runs on the engine's thread."""

import os
from collections.abc import Iterable
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from worker.engine.rows import Output, Row
from worker.engine.sampling import Samplers

_SMALLEST_CHUNK: Final = 32


class Batch:
    """Rows that decode together; rows join and leave between steps.

    The caller keeps the number of rows at or under `max_rows`. `prefill_step` bounds the prompt tokens that
    one step computes, over all rows, so it bounds how long the decoding rows stall.
    """

    def __init__(self, network: Any, end_tokens: Iterable[int], *, max_rows: int, prefill_step: int) -> None:
        self._network = network
        self._end_sequences = [[token] for token in sorted(end_tokens)]
        self._max_rows = max_rows
        self._prefill_step = prefill_step
        # Two processes started in the same millisecond must not draw alike.
        mx.random.seed(int.from_bytes(os.urandom(8)) >> 1)
        self._samplers = Samplers(_vocabulary(network))
        self._generator = self._new_generator()
        self._row_of: dict[int, int] = {}
        self._uid_of: dict[int, int] = {}
        self._prefilling: set[int] = set()

    def _new_generator(self) -> BatchGenerator:
        return BatchGenerator(
            self._network,
            stop_tokens=self._end_sequences,
            completion_batch_size=self._max_rows,
            prefill_batch_size=min(8, self._max_rows),
            prefill_step_size=self._prefill_step,
            stream=mx.default_stream(mx.default_device()),
        )

    def __len__(self) -> int:
        return len(self._row_of)

    def insert(self, row: Row) -> None:
        """Let `row` take part from the next step on."""
        (uid,) = self._generator.insert(
            [row.prompt], max_tokens=[row.max_tokens], samplers=[self._samplers.of(row.sampling)]
        )
        self._row_of[uid] = row.id
        self._uid_of[row.id] = uid
        self._prefilling.add(uid)

    def remove(self, row: int) -> bool:
        """Take a row out; False when it is not there, because it ended by itself."""
        uid = self._uid_of.pop(row, None)
        if uid is None:
            return False
        del self._row_of[uid]
        self._prefilling.discard(uid)
        self._generator.remove([uid])
        return True

    def step(self) -> list[Output]:
        """One decode step for every decoding row and one chunk of prompt for those that are not there yet."""
        if self._prefilling:
            chunk = max(_SMALLEST_CHUNK, self._prefill_step // len(self._prefilling))
            self._generator.prefill_step_size = chunk
        _, responses = self._generator.next()
        outputs = []
        for response in responses:
            uid = response.uid
            row = self._row_of[uid]
            self._prefilling.discard(uid)
            if response.finish_reason is not None:
                del self._row_of[uid], self._uid_of[row]
            outputs.append(Output(row, response.token, response.finish_reason))
        return outputs

    def reset(self) -> list[int]:
        """Drop every row after a failed step, of which the generator's state is unknown; returns them."""
        rows = list(self._uid_of)
        self._row_of.clear()
        self._uid_of.clear()
        self._prefilling.clear()
        self._generator.close()
        self._generator = self._new_generator()
        return rows

    @property
    def kv_bytes(self) -> int:
        return int(self._generator.prompt_cache_nbytes)


def _vocabulary(network: Any) -> int:
    """Width of the logits, found by asking the model, since configurations may be padded."""
    from mlx_lm.models.cache import make_prompt_cache

    logits = network(mx.array([[0]]), cache=make_prompt_cache(network))
    return int(logits.shape[-1])

"""Texts to vectors, with a decoder. Everything here runs on the engine's thread."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.jobs import LARGEST_SLICE, Pace, Work
from worker.model.embedding import Pooling

_ROWS: Final = 64


class Embedder:
    """For one loaded model. Vectors are normalised: their length is 1."""

    def __init__(self, network: Any, pooling: Pooling, *, prefill_step: int) -> None:
        self._network = network
        self._body = network.model
        self._pooling = pooling
        self._pace = Pace(prefill_step)

    def held(self, texts: Sequence[Sequence[int]]) -> int:
        """Tokens whose state is held at once, at most. May be called from any thread."""
        return min(sum(map(len, texts)), max(LARGEST_SLICE, *map(len, texts)))

    def embed(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        """Each text's vector as little-endian float32, in the order of the texts, which have tokens."""
        vectors = [b""] * len(texts)
        for part in self._parts(texts):
            rows = yield from self._batch([texts[index] for index in part])
            for index, row in zip(part, rows, strict=True):
                vectors[index] = row
        return vectors

    def _parts(self, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Indexes of texts that are computed together: of like length, so that little is padding."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        while order:
            size = 1
            while size < min(len(order), _ROWS) and (size + 1) * len(texts[order[size]]) <= self._pace.tokens:
                size += 1
            yield order[:size]
            order = order[size:]

    def _batch(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        """A text that is too long for one slice takes several."""
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        # Padding comes behind, where nothing that counts can see it.
        padded = mx.array([[*text, *[0] * (longest - len(text))] for text in texts])
        cache = make_prompt_cache(self._network)
        pooled = None
        done = 0
        while done < longest:
            width = min(max(1, self._pace.tokens // len(texts)), longest - done)
            started = time.monotonic()
            hidden = self._body(padded[:, done : done + width], cache=cache).astype(mx.float32)
            places = mx.arange(done, done + width)[None]
            ends = mx.array(lengths)[:, None]
            # The weight of each position in its row's vector.
            share = places == ends - 1 if self._pooling == "last" else places < ends
            found = mx.where(share[..., None], hidden, 0).sum(axis=1)
            pooled = found if pooled is None else pooled + found
            mx.eval(pooled, [layer.state for layer in cache])
            self._pace.took(len(texts) * width, time.monotonic() - started)
            done += width
            if done < longest:
                yield
        assert pooled is not None
        norms = mx.maximum(mx.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)
        vectors = np.asarray(pooled / norms)
        yield
        return [row.tobytes() for row in vectors]

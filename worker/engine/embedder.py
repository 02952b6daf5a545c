"""Texts to vectors. Everything here runs on the engine's thread."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.jobs import Work
from worker.engine.pace import Pace
from worker.model.embedding import Embedding, Pooling

_ROWS: Final = 64
_PADDING: Final = 32
"""Tokens that a text may be padded with to be computed with longer ones."""


class Embedder(Protocol):
    """For one loaded model."""

    def held(self, texts: Sequence[Sequence[int]]) -> int:
        """Tokens whose state is held at once, at most. May be called from any thread."""
        ...

    def embed(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        """Each text's vector as little-endian float32, in the order of the texts, which have tokens."""
        ...


def _parts(texts: Sequence[Sequence[int]], pace: Pace, *, padding: int = _PADDING) -> Iterator[list[int]]:
    """Indexes of texts that are computed together: of like length, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    while order:
        size, shortest = 1, len(texts[order[0]])
        while size < min(len(order), _ROWS):
            length = len(texts[order[size]])
            if (size + 1) * length > pace.tokens or length - shortest > padding:
                break
            size += 1
        yield order[:size]
        order = order[size:]


def _padded(texts: Sequence[Sequence[int]], token: int = 0) -> mx.array:
    longest = max(map(len, texts))
    return mx.array([[*text, *[token] * (longest - len(text))] for text in texts])


class DecoderEmbedder:
    """With a decoder. Vectors are normalised: their length is 1."""

    def __init__(self, network: Any, pooling: Pooling, *, prefill_step: int) -> None:
        self._network = network
        self._body = network.model
        self._pooling = pooling
        self._pace = Pace(prefill_step)

    def held(self, texts: Sequence[Sequence[int]]) -> int:
        return min(sum(map(len, texts)), max(self._pace.most, *map(len, texts)))

    def embed(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        vectors = [b""] * len(texts)
        for part in _parts(texts, self._pace):
            rows = yield from self._batch([texts[index] for index in part])
            for index, row in zip(part, rows, strict=True):
                vectors[index] = row
        return vectors

    def _batch(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        """A text that is too long for one slice takes several."""
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        # Padding comes behind, where nothing that counts can see it.
        padded = _padded(texts)
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


class EncoderEmbedder:
    """With an encoder, which reads a text whole: a slice is as long as its longest text at least."""

    def __init__(self, network: Any, embedding: Embedding, *, padding: int, prefill_step: int) -> None:
        """`padding` is the token that short texts are filled up with."""
        self._network = network
        self._embedding = embedding
        self._padding = padding
        self._pace = Pace(prefill_step)
        norms = (array for name, array in tree_flatten(network.parameters()) if "norm" in name.lower())
        self._dtype = next(norms).dtype
        # Masks of some architectures are numbers that half precision has not: they make NaN of padding.
        self._longest_padding = 0 if self._dtype == mx.float16 else _PADDING

    def held(self, texts: Sequence[Sequence[int]]) -> int:
        return 0

    def embed(self, texts: Sequence[Sequence[int]]) -> Work[list[bytes]]:
        vectors = [b""] * len(texts)
        for part in _parts(texts, self._pace, padding=self._longest_padding):
            started = time.monotonic()
            rows = np.asarray(self._batch([texts[index] for index in part]))
            for index, row in zip(part, rows, strict=True):
                vectors[index] = row.tobytes()
            self._pace.took(sum(len(texts[index]) for index in part), time.monotonic() - started)
            yield
        return vectors

    def _batch(self, texts: Sequence[Sequence[int]]) -> mx.array:
        lengths = mx.array([len(text) for text in texts])[:, None]
        tokens = _padded(texts, self._padding)
        there = mx.arange(tokens.shape[1])[None] < lengths
        states = self._network(tokens, there.astype(self._dtype)).astype(mx.float32)
        if self._embedding.pooling == "mean":
            vectors = mx.where(there[..., None], states, 0).sum(axis=1) / lengths
        else:
            last = self._embedding.pooling == "last"
            places = lengths - 1 if last else mx.zeros_like(lengths)
            vectors = mx.take_along_axis(states, places[..., None], axis=1)[:, 0]
        if self._embedding.normalised:
            vectors = vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors

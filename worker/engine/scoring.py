"""How likely a model is to give each of several answers. Everything here runs on the engine's thread.

What all questions begin with is computed once, if the prompt cache does not have it, then each question's
rest, then the answers as continuations of it, several at a time.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import msgspec

from worker.engine.jobs import Work
from worker.engine.pace import Pace
from worker.engine.prefixes import Prefixes
from worker.engine.prompt_cache import PromptCache

_COPIES_BYTES: Final = 256 * 2**20
"""KV cache that answers computed together may take beside the question's own."""
_LOGITS: Final = 2**25
"""Numbers in the logits of answers computed together."""


class Ballot(msgspec.Struct, frozen=True):
    """One question. `rest` is what follows the common prefix, up to the answer's position.

    Both have at least one token, as has each answer, and no two answers are equal.
    """

    rest: list[int]
    answers: list[list[int]]


class Scores(msgspec.Struct, frozen=True):
    """`logarithms` are of each answer's probability, natural ones, by ballot."""

    logarithms: list[list[float]]
    cached: int
    """Tokens of the prefix that needed no computing."""


class Scorer:
    """For one loaded model."""

    def __init__(self, network: Any, *, prefill_step: int, prompts: PromptCache | None = None) -> None:
        self._network = network
        self._pace = Pace(prefill_step)
        self._prefixes = Prefixes(network, prompts)

    def score(
        self,
        prefix: list[int],
        ballots: Sequence[Ballot],
        *,
        adapter: str = "",
        session: str | None = None,
    ) -> Work[Scores]:
        """`adapter` is the identity of the one in place."""
        cached, common = self._prefixes.begin(prefix, adapter=adapter, session=session)
        yield from self._read(common, prefix[cached:])
        kept = self._prefixes.keep(prefix, common, adapter=adapter, session=session)
        scores = []
        for ballot in ballots:
            cache = copy.deepcopy(common) if kept or len(ballots) > 1 else common
            yield from self._read(cache, ballot.rest[:-1])
            scores.append((yield from self._answers(cache, ballot)))
        return Scores(scores, cached)

    def _read(self, cache: list[Any], tokens: list[int]) -> Work[None]:
        done = 0
        while done < len(tokens):
            chunk = mx.array(tokens[done : done + self._pace.tokens])
            started = time.monotonic()
            self._network(chunk[None], cache=cache)
            mx.eval([layer.state for layer in cache])
            self._pace.took(chunk.size, time.monotonic() - started)
            done += chunk.size
            yield

    def _answers(self, cache: list[Any], ballot: Ballot) -> Work[list[float]]:
        answers = ballot.answers
        # Before the last token is read, because that moves the caches on.
        logits = self._network(mx.array([ballot.rest[-1:]]), cache=cache)[0, -1].astype(mx.float32)
        firsts = logits[mx.array([answer[0] for answer in answers])] - mx.logsumexp(logits)
        scores: list[float] = firsts.tolist()
        yield
        rows = _rows(answers)
        for part in self._parts(rows, cache, vocabulary=logits.size):
            for index, score in self._continued(cache, part, answers):
                scores[index] += score
            yield
        return scores

    def _parts(
        self, rows: list["_Continuation"], cache: list[Any], *, vocabulary: int
    ) -> Iterator[list["_Continuation"]]:
        """Rows in parts that one slice may compute; rows of like length are together."""
        rows = sorted(rows, key=lambda row: len(row.tokens))
        own_bytes = max(1, sum(layer.nbytes for layer in cache))
        while rows:
            size = 1
            while size < len(rows):
                tokens = (size + 1) * len(rows[size].tokens)
                if (
                    tokens > self._pace.tokens
                    or tokens * vocabulary > _LOGITS
                    or (size + 1) * own_bytes > _COPIES_BYTES
                ):
                    break
                size += 1
            yield rows[:size]
            rows = rows[size:]

    def _continued(
        self, cache: list[Any], part: list["_Continuation"], answers: list[list[int]]
    ) -> list[tuple[int, float]]:
        """What the tokens after the first add to the score of each answer in this part."""
        started = time.monotonic()
        length = max(len(row.tokens) for row in part)
        # Padding comes behind, where nothing that counts can see it.
        padded = mx.array([[*row.tokens, *[0] * (length - len(row.tokens))] for row in part])
        logits = self._network(padded, cache=[_repeated(layer, len(part)) for layer in cache])
        totals = mx.logsumexp(logits.astype(mx.float32), axis=-1)
        places = [
            (index, row, position, token)
            for row, continuation in enumerate(part)
            for index in continuation.answers
            for position, token in enumerate(answers[index][1:])
        ]
        row, position, token = (mx.array([place[axis] for place in places]) for axis in (1, 2, 3))
        gains = logits[row, position, token].astype(mx.float32) - totals[row, position]
        values: list[float] = gains.tolist()
        self._pace.took(padded.size, time.monotonic() - started)
        return [(place[0], value) for place, value in zip(places, values, strict=True)]


class _Continuation(msgspec.Struct):
    """Tokens to compute, and which answers can be read off them."""

    tokens: tuple[int, ...]
    answers: list[int]


def _rows(answers: list[list[int]]) -> list[_Continuation]:
    """The fewest sequences off which all answers of several tokens can be read."""
    rows: dict[tuple[int, ...], _Continuation] = {}
    covering: dict[tuple[int, ...], _Continuation] = {}
    for index in sorted(range(len(answers)), key=lambda index: -len(answers[index])):
        tokens = tuple(answers[index][:-1])
        if not tokens:
            continue
        row = covering.get(tokens)
        if row is None:
            row = rows[tokens] = _Continuation(tokens, [])
            for end in range(1, len(tokens) + 1):
                covering.setdefault(tokens[:end], row)
        row.answers.append(index)
    return list(rows.values())


def _repeated(layer: Any, rows: int) -> Any:
    """One layer's cache for `rows` equal rows; all kinds keep the batch in their arrays' first axis."""
    layer = copy.deepcopy(layer)
    layer.state = _repeated_state(layer.state, rows)
    return layer


def _repeated_state(state: Any, rows: int) -> Any:
    if isinstance(state, mx.array):
        return mx.repeat(state, rows, axis=0) if state.ndim else state
    if isinstance(state, tuple | list):
        return type(state)(_repeated_state(part, rows) for part in state)
    return state

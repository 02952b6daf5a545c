"""The running batch, on mlx-lm's BatchGenerator. Everything here runs on the engine's thread."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import StopSequences

from worker.engine.draft import Draft
from worker.engine.families import Families
from worker.engine.generator import RowGenerator
from worker.engine.logprobs import scored
from worker.engine.pace import Pace
from worker.engine.processors import NotYet, processors_of
from worker.engine.prompt_cache import PromptCache
from worker.engine.reuse import Reuse
from worker.engine.rows import Output, Row
from worker.engine.sampling import Samplers
from worker.engine.speculation import Counts, Speculated, Speculator
from worker.text.logprobs import Scored

_LEAST: Final = 8
"""Tokens of a prompt that a step computes however much memory that takes."""
_KEPT: Final = 64
"""Distinct sets of tokens that end a row kept for reuse."""


class Batch:
    """Rows that decode together; rows join and leave between steps.

    The caller keeps the number of rows at or under `max_rows`. `prefill_step` bounds the prompt tokens that
    one step computes, over all rows, so it bounds how long the decoding rows stall. `most_scores` bounds the
    pairs of tokens that a step compares, where that takes memory, and may be changed; 0 is no bound.
    `line_breaks` are tokens that xtc does not leave out. Rows begin with what `prompts` has of their prompt
    and leave their own state there; without it nothing is kept. While one row decodes alone, `draft` proposes
    up to `draft_tokens` at a time.
    """

    generator: type[RowGenerator] = RowGenerator

    def __init__(
        self,
        network: Any,
        end_tokens: Iterable[int],
        *,
        max_rows: int,
        prefill_step: int,
        most_scores: int = 0,
        line_breaks: Sequence[int] = (),
        prompts: PromptCache | None = None,
        draft: Draft | None = None,
        draft_tokens: int = 1,
    ) -> None:
        self._network = network
        self._end_tokens = frozenset(end_tokens)
        self._max_rows = max_rows
        self._prefill_step = prefill_step
        self._pace = Pace(prefill_step)
        self.most_scores = most_scores
        # Two processes started in the same millisecond must not draw alike.
        mx.random.seed(int.from_bytes(os.urandom(8)) >> 1)
        self.width = logits_width(network)
        """Of the logits."""
        self._samplers = Samplers(self.width, [*sorted(self._end_tokens), *line_breaks])
        self._speculator = None if draft is None else Speculator(draft, self._samplers, most=draft_tokens)
        self._endings: dict[frozenset[int], StopSequences] = {}
        self._families = Families()
        self._told: dict[int, int] = {}
        """Alternatives to tell for the tokens of a row, by its uid."""
        self._reuse = Reuse(PromptCache(0) if prompts is None else prompts, network)
        self._generator = self._new_generator()
        self._row_of: dict[int, int] = {}
        self._uid_of: dict[int, int] = {}
        self._rows: dict[int, Row] = {}
        """By uid; for the draft."""
        self._prefilling: set[int] = set()

    def _new_generator(self) -> RowGenerator:
        return self.generator(
            self._network,
            stop_tokens=[[token] for token in sorted(self._end_tokens)],
            completion_batch_size=self._max_rows,
            prefill_batch_size=min(8, self._max_rows),
            prefill_step_size=self._prefill_step,
            stream=mx.default_stream(mx.default_device()),
        )

    def __len__(self) -> int:
        return len(self._row_of) + self._families.waiting

    def insert(self, row: Row) -> None:
        """Let `row` take part from the next step on; with a family, from when its prompt is computed on."""
        if row.family is None or len(row.prompt) == 1:
            self._begin(row)
        elif (shared := self._families.join(row)) is not None:
            self._begin(row, shared)
        elif self._families.led_by(row.id):
            try:
                self._begin(row)
            except Exception:
                self._families.leave(row.id)
                raise

    def _begin(self, row: Row, shared: list[Any] | None = None) -> None:
        """Give `row` to the generator; `shared` is the cache of its prompt but for the last token."""
        endings = self._ends(row)
        processors = processors_of(row.sampling)
        if row.min_tokens > 0 and endings:
            processors.append(NotYet(endings, len(row.prompt) + row.min_tokens))
        if row.control is not None:
            row.control.begin()
            processors.append(row.control)
        cached = 0 if shared is None else len(row.prompt) - 1
        in_family = shared is not None
        if shared is None and (hit := self._reuse.find(row, self._generator)) is not None:
            cached, shared = hit.cached, hit.state
        segments = self._reuse.segments(row, cached)
        if self._families.led_by(row.id) and len(segments[-1]) > 1:
            # Where the others take over.
            segments[-1:] = [segments[-1][:-1], segments[-1][-1:]]
        (uid,) = self._generator.insert_segments(
            [segments],
            max_tokens=[row.max_tokens],
            caches=[shared],
            # The generator adds to it what it computes.
            all_tokens=[row.prompt[:cached]],
            samplers=[self._samplers.of(row.sampling, position=row.said)],
            logits_processors=[processors],
            stop_sequences=[self._stop_sequences(endings)],
        )
        self._row_of[uid] = row.id
        self._uid_of[row.id] = uid
        self._rows[uid] = row
        self._prefilling.add(uid)
        self._reuse.begin(uid, row, cached, shared=in_family)
        if row.logprobs is not None:
            self._told[uid] = row.logprobs
        if shared is not None and cached == len(row.prompt) - 1 and self._families.led_by(row.id):
            # Nothing of the prompt is left to compute before the last token, so none needs to wait for it.
            for waiting in self._families.settle(row.id, shared):
                self._begin(waiting, shared)

    def _ends(self, row: Row) -> frozenset[int]:
        own = frozenset() if row.ignore_eos else self._end_tokens
        return own.union(row.stop_tokens)

    def _stop_sequences(self, tokens: frozenset[int]) -> StopSequences:
        found = self._endings.get(tokens)
        if found is None:
            if len(self._endings) >= _KEPT:
                self._endings.clear()
            found = StopSequences([[token] for token in sorted(tokens)])
            self._endings[tokens] = found
        return found

    def forget(self, family: int) -> None:
        """No more rows of this family will come."""
        self._families.forget(family)

    def allow(self, row: int, tokens: int) -> None:
        """Let a row that decodes have so many tokens, with its prompt, if it is still there."""
        uid = self._uid_of.get(row)
        if uid is not None:
            self._generator.allow(uid, tokens - len(self._rows[uid].prompt))

    def remove(self, row: int) -> bool:
        """Take a row out; False when it is not there, because it ended by itself."""
        uid = self._uid_of.pop(row, None)
        if uid is None:
            waited, _ = self._families.leave(row)
            return waited
        del self._row_of[uid], self._rows[uid]
        self._prefilling.discard(uid)
        self._told.pop(uid, None)
        self._reuse.removed(uid, self._generator)
        self._generator.remove([uid])
        _, heir = self._families.leave(row)
        if heir is not None:
            self._begin(heir)
        return True

    def step(self) -> list[Output]:
        """One decode step for every decoding row and one chunk of prompt for those that are not there yet."""
        self.settle()
        prompts, responses, proposed = self._advance()
        self._reuse.progressed(prompts, self._generator)
        if self._families:
            self._share(prompts)
        outputs = []
        told = self._tell(responses) if self._told else [None] * len(responses)
        for index, (response, scores) in enumerate(zip(responses, told, strict=True)):
            uid = response.uid
            row = self._row_of[uid]
            self._prefilling.discard(uid)
            if response.finish_reason is not None:
                del self._row_of[uid], self._uid_of[row], self._rows[uid]
                self._told.pop(uid, None)
                by_length = response.finish_reason == "length"
                self._reuse.ended(uid, response.all_tokens, response.prompt_cache, by_length=by_length)
            # Of a step with proposals all but the first token were among them.
            drafted = proposed > 0 and index > 0
            outputs.append(
                Output(
                    row,
                    response.token,
                    response.finish_reason,
                    scores,
                    proposed if index == 0 else 0,
                    drafted,
                )
            )
        return outputs

    def _advance(self) -> tuple[list[Any], list[Any], int]:
        """What was computed of prompts, what rows said, and how many tokens the draft proposed for it."""
        if not self._prefilling:
            speculated = self._speculate()
            if speculated is not None:
                return [], speculated.responses, speculated.proposed
            return (*self._generator.next(), 0)
        self._generator.prefill_step_size = self._chunk()
        responses = self._generator.next()
        self._pace.took(*self._generator.computed)
        return (*responses, 0)

    def _chunk(self) -> int:
        """Tokens of each prompt that the next step computes; only asked for while there are prompts."""
        waiting = len(self._prefilling)
        chunk = self._pace.share(waiting, decoding=len(self._row_of) > waiting)
        if self.most_scores:
            looked_at = waiting * (self._generator.reach + chunk)
            chunk = min(chunk, max(_LEAST, self.most_scores // looked_at))
        return chunk

    def _speculate(self) -> Speculated | None:
        """A step with the draft, where one row decodes alone and the draft knows enough of it."""
        speculator = self._speculator
        if speculator is None or len(self._row_of) != 1:
            return None
        (uid,) = self._row_of
        if not speculator.able(self._generator, self._rows[uid]) or not speculator.read(self._generator):
            return None
        return speculator.step(self._generator, self._rows[uid])

    def settle(self) -> None:
        """Keep the state of what the last step ended; costs a copy of it, so tell of the step first."""
        self._reuse.settle()

    def cached(self) -> list[tuple[int, int]]:
        """Rows begun since the last call, and how many tokens of each prompt needed no computing."""
        return self._reuse.told()

    def _share(self, prompts: list[Any]) -> None:
        """Let the rows begin that waited for a prompt of which only the last token is left to compute."""
        for prompt in prompts:
            done, total = prompt.progress
            row = self._row_of.get(prompt.uid)
            if row is None or done < total - 1 or not self._families.led_by(row):
                continue
            if prompt.end_of_prompt:
                # It went on to decode without a stop before the last token: nothing to share was left of it.
                _, heir = self._families.leave(row)
                if heir is not None:
                    self._begin(heir)
                continue
            cache = self._generator.extract_cache([prompt.uid])[prompt.uid][0]
            for waiting in self._families.settle(row, cache):
                self._begin(waiting, cache)

    def _tell(self, responses: list[Any]) -> list[Scored | None]:
        asked = [response for response in responses if response.uid in self._told]
        rows = [(response.logprobs, response.token, self._told[response.uid]) for response in asked]
        told = iter(scored(rows) if rows else ())
        return [next(told) if response.uid in self._told else None for response in responses]

    def reset(self) -> list[int]:
        """Drop every row after a failed step, of which the generator's state is unknown; returns them."""
        rows = [*self._uid_of, *self._families.reset()]
        self._told.clear()
        self._row_of.clear()
        self._uid_of.clear()
        self._rows.clear()
        self._prefilling.clear()
        self._reuse.reset()
        if self._speculator is not None:
            self._speculator.reset()
        self._generator.close()
        self._generator = self._new_generator()
        return rows

    @property
    def kv_bytes(self) -> int:
        draft = 0 if self._speculator is None else self._speculator.draft.nbytes
        return int(self._generator.prompt_cache_nbytes) + self._families.bytes + draft

    @property
    def speculated(self) -> Counts | None:
        """What became of the draft's proposals; None without a draft."""
        return None if self._speculator is None else self._speculator.counts

    def forget_draft(self) -> int:
        """Let go of what the draft has read; it reads again what it needs. Returns bytes freed."""
        if self._speculator is None:
            return 0
        freed = self._speculator.draft.nbytes
        self._speculator.draft.reset()
        return freed


def logits_width(network: Any) -> int:
    """Width of the logits, found by asking the model, since configurations may be padded."""
    from mlx_lm.models.cache import make_prompt_cache

    logits = network(mx.array([[0]]), cache=make_prompt_cache(network))
    return int(logits.shape[-1])

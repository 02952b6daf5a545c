"""Decisions: the probabilities of a closed set of answers, for any number of questions about one material."""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from shared.errors import PublicError, invalid
from worker.completion import Completions
from worker.engine.jobs import Jobs
from worker.engine.scoring import Ballot, Scorer
from worker.request import Request
from worker.text.questions import Question, messages
from worker.text.thinking import Thinking, select_thinking

_HARMONY_HEADER: Final = "<|start|>assistant"
_HARMONY_ANSWER: Final = "<|channel|>final<|message|>"
_ANCHOR: Final = 4
"""Tokens of the prompt's end that decide how an answer behind them is cut into tokens."""


class Decided(msgspec.Struct, frozen=True):
    """`probabilities` are by question, in the order of its options; each question's add up to 1."""

    probabilities: list[list[float]]
    input_tokens: int
    """Tokens of the questions' prompts; what they begin with in common is computed, and counts, once."""
    cached_tokens: int = 0
    """Of these, what needed no computing, because an earlier prompt began with it."""


class _Prepared(msgspec.Struct, frozen=True):
    prefix: list[int]
    ballots: list[Ballot]

    @property
    def input_tokens(self) -> int:
        return len(self.prefix) + sum(len(ballot.rest) for ballot in self.ballots)

    @property
    def length(self) -> int:
        """Tokens whose state is held at once: those of the prefix, and of one question besides."""
        return 2 * len(self.prefix) + max(
            len(ballot.rest) + max(map(len, ballot.answers)) for ballot in self.ballots
        )


class Decisions:
    """Decides with one loaded chat model. On the event loop but for the preparation."""

    def __init__(self, completions: Completions, jobs: Jobs, scorer: Scorer) -> None:
        self._completions = completions
        self._jobs = jobs
        self._scorer = scorer
        model = completions.model
        source = getattr(model.tokenizer, "chat_template", None)
        self._thinking: Thinking | None = select_thinking(
            model.tokenizer, source if isinstance(source, str) else ""
        )

    @property
    def model_id(self) -> str:
        return self._completions.model_id

    async def decide(
        self,
        material: str,
        questions: Sequence[Question],
        *,
        param: str,
        adapter: str | None = None,
        session: str | None = None,
    ) -> Decided:
        """`param` is the field of the material, `adapter` a name. Raises PublicError."""
        self._completions.prompts.check_writes()
        identity = self._completions.mounts.identity(adapter)
        async with self._jobs.open("decisions", adapter=identity) as job:
            prepared = await self._completions.prompts.run(lambda: self._prepare(material, questions, param))
            await self._completions.restore(prepared.prefix, adapter=identity, session=session)
            work = self._scorer.score(prepared.prefix, prepared.ballots, adapter=identity, session=session)
            scores = await job.run(work, prompt_tokens=prepared.input_tokens, length=prepared.length)
            job.cached_tokens = scores.cached
        shares = [
            _shares(ballot.answers, score)
            for ballot, score in zip(prepared.ballots, scores.logarithms, strict=True)
        ]
        return Decided(shares, prepared.input_tokens, scores.cached)

    def _prepare(self, material: str, questions: Sequence[Question], param: str) -> _Prepared:
        model = self._completions.model
        if not model.template.usable:
            raise model.template.unusable(self.model_id)
        texts = [self._rendered(material, question) for question in questions]
        prompts = self._encoded(texts)
        window = model.context_window
        ballots = []
        # Every question keeps at least one token of its own.
        common = min(_common(prompts), min(map(len, prompts)) - 1)
        for question, text, prompt in zip(questions, texts, prompts, strict=True):
            answers = self._answers(text, prompt, question)
            needed = len(prompt) + max(map(len, answers))
            if needed > window:
                raise PublicError(
                    400,
                    "context_length_exceeded",
                    f"The context window of this model is {window} tokens, and `{question.param}` needs "
                    f"{needed} with the {param}. Shorten them.",
                    param=param,
                )
            ballots.append(Ballot(prompt[common:], answers))
        return _Prepared(prompts[0][:common], ballots)

    def _rendered(self, material: str, question: Question) -> str:
        """The prompt's text up to where the answer begins: behind any thinking."""
        request = Request(
            messages=messages(material, question), template_arguments={"enable_thinking": False}
        )
        text = self._completions.model.template.render(request)
        if self._thinking is not None and self._thinking.open_after(text):
            text += self._thinking.closings[0]
        if text.endswith(_HARMONY_HEADER):
            text += _HARMONY_ANSWER
        return text

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each. The material is tokenised once where that gives the same tokens."""
        encode = self._completions.model.template.encode
        first = encode(texts[0])
        cut = texts[0].rfind("\n", 0, _common(texts)) + 1 if len(texts) > 1 else 0
        if cut:
            head = encode(texts[0][:cut])
            if head + encode(texts[0][cut:]) == first:
                return [first, *(head + encode(text[cut:]) for text in texts[1:])]
        return [first, *map(encode, texts[1:])]

    def _answers(self, text: str, prompt: list[int], question: Question) -> list[list[int]]:
        """Tokens of each option as an answer that begins behind the prompt."""
        model = self._completions.model
        encode = model.template.encode
        anchor = prompt[-_ANCHOR:]
        before: str = model.tokenizer.decode(anchor)
        # Tokenizers may treat the beginning of a text in a way of its own, and an answer is no beginning.
        anchored = text.endswith(before) and encode(before) == anchor
        answers = []
        for option in question.options:
            tokens = encode(option.text)
            if anchored:
                behind = encode(before + option.text)
                if behind[: len(anchor)] == anchor:
                    tokens = behind[len(anchor) :]
            if not tokens:
                raise invalid(f"An option of `{question.param}` is empty.", param=question.param)
            answers.append(tokens)
        if len(set(map(tuple, answers))) < len(answers):
            raise invalid(
                f"Two options of `{question.param}` are the same to this model.", param=question.param
            )
        return answers


def _common(sequences: Sequence[Sequence[Any]]) -> int:
    """How long the beginning is that all have in common."""
    # All others lie between the least and the greatest, and so share what these two share.
    least, greatest = min(sequences), max(sequences)  # type: ignore[type-var]
    for index, (a, b) in enumerate(zip(least, greatest, strict=False)):
        if a != b:
            return index
    return min(len(least), len(greatest))


def _shares(answers: list[list[int]], scores: list[float]) -> list[float]:
    """Shares of the probability that all answers have together.

    A reply that begins with an answer is that answer, unless it begins with a longer one.
    """
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    shares = list(weights)
    index_of = {tuple(answer): index for index, answer in enumerate(answers)}
    for answer, weight in zip(index_of, weights, strict=True):
        for end in range(len(answer) - 1, 0, -1):
            shorter = index_of.get(answer[:end])
            if shorter is not None:
                shares[shorter] -= weight
                break
    shares = [max(0.0, share) for share in shares]
    total = sum(shares)
    return [share / total for share in shares]


def readable(value: Any) -> str:
    """Text as it is, other JSON as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

"""Tokens per second through the whole system against mlx-lm's generators on the same weights."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.client import Answer, stream_chat
from tests.bench.direct import Direct, Timing, timing
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model

MODEL = "smollm2-135m"
SUBJECTS = ("a river", "a lighthouse", "an old clock", "two friends", "the moon", "a train", "rain", "bread")


def measure(*, quick: bool) -> list[Row]:
    """One stream, and eight at once; rounds of the two sides alternate."""
    rounds = 2 if quick else 6
    folder = starter_model()
    with tempfile.TemporaryDirectory() as base, Direct(folder) as direct:
        config = models_config(**{MODEL: folder}) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", config=config) as service:
            one = _compare(service.url, direct, [SUBJECTS[0]], 24 if quick else 64, rounds)
            eight = _compare(service.url, direct, list(SUBJECTS), 24 if quick else 48, rounds)
    return [*_rows("one stream", 0.99, *one), *_rows("batch of 8", 0.97, *eight)]


def _rows(what: str, least: float, ours: list[Timing], theirs: list[Timing]) -> list[Row]:
    return [
        row(
            f"{what}: decoding",
            "tok/s",
            [round_.decode_per_s for round_ in ours],
            [round_.decode_per_s for round_ in theirs],
            goal=f">= {least} of mlx-lm's generator",
        ),
        row(
            f"{what}: with prefill",
            "tok/s",
            [round_.total_per_s for round_ in ours],
            [round_.total_per_s for round_ in theirs],
        ),
        row(
            f"{what}: first token of every row",
            "ms",
            [1000 * round_.first_s for round_ in ours],
            [1000 * round_.first_s for round_ in theirs],
        ),
    ]


def _compare(
    url: str, direct: Direct, subjects: list[str], max_tokens: int, rounds: int
) -> tuple[list[Timing], list[Timing]]:
    texts = [f"Write a very long story about {subject}." for subject in subjects]
    # The first round of each loads, allocates and warms up.
    asyncio.run(through_the_system(url, texts, 8))
    direct.generate(texts, 8)
    ours, theirs = [], []
    for number in range(rounds):
        # Who goes first alternates too.
        for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if side == "ours":
                ours.append(asyncio.run(through_the_system(url, texts, max_tokens)))
            else:
                theirs.append(direct.generate(texts, max_tokens))
        if (ours[-1].prompt_tokens, ours[-1].tokens) != (theirs[-1].prompt_tokens, theirs[-1].tokens):
            raise RuntimeError(f"the two sides did not do the same work: {ours[-1]} and {theirs[-1]}")
    return ours, theirs


async def through_the_system(
    url: str, texts: list[str], max_tokens: int, fields: Sequence[dict[str, Any]] = ()
) -> Timing:
    """Ask for all answers at once; `fields` are those of each request beside the usual."""
    fields = fields or [{}] * len(texts)
    answers = await asyncio.gather(
        *(stream_chat(url, MODEL, text, max_tokens, **own) for text, own in zip(texts, fields, strict=True))
    )
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    return timing(prompt_tokens, [_token_times(answer) for answer in answers])


def _token_times(answer: Answer) -> list[float]:
    """One time for each token. An event may carry several tokens, and the last may carry none."""
    times = answer.times_s[: answer.completion_tokens]
    missing = answer.completion_tokens - len(times)
    return times + [times[-1]] * missing

"""Fifty requests at once: all are answered, those that find no row wait for one."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.bench.client import Answer, stream_chat
from tests.bench.direct import Direct
from tests.bench.engine import MODEL, SUBJECTS
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model

_CROWD: Final = 50


def measure(*, quick: bool) -> list[Row]:
    """Rounds of the two sides alternate; mlx-lm's generator gets all prompts at once, in batches of eight."""
    rounds, tokens = (1, 8) if quick else (3, 16)
    texts = [f"Story {n}, about {SUBJECTS[n % 8]}: write a very long one." for n in range(_CROWD)]
    answered: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    folder = starter_model()
    with tempfile.TemporaryDirectory() as base, Direct(folder) as direct:
        config = models_config(**{MODEL: folder}) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", config=config) as service:
            asyncio.run(_ask(service.url, texts[:2], 2))
            direct.generate(texts[:2], 2)
            for number in range(rounds):
                # Nothing that was asked before, or the prompts were known.
                asked = [f"Round {number}. {text}" for text in texts]
                started = time.perf_counter()
                answers = asyncio.run(_ask(service.url, asked, tokens))
                taken = time.perf_counter() - started
                answered.append(sum(isinstance(answer, Answer) for answer in answers))
                done = sum(answer.completion_tokens for answer in answers if isinstance(answer, Answer))
                ours.append(done / taken)
                theirs.append(direct.generate(asked, tokens, together=8).total_per_s)
    return [
        row("requests answered", "", answered, goal=f"{_CROWD} of {_CROWD}"),
        row("all of them, with prefill", "tok/s", ours, theirs),
    ]


async def _ask(url: str, texts: list[str], tokens: int) -> list[Answer | BaseException]:
    asked = (stream_chat(url, MODEL, text, tokens, ignore_eos=True) for text in texts)
    return await asyncio.gather(*asked, return_exceptions=True)

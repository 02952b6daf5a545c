"""A batch of eight of which four rows are constrained to a JSON schema, against eight free ones."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bench.constraints import SCHEMA
from tests.bench.engine import MODEL, SUBJECTS, through_the_system
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model

_FREE: Final[dict[str, Any]] = {"ignore_eos": True}
_JSON: Final[dict[str, Any]] = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "story", "strict": True, "schema": SCHEMA},
    }
}


def measure(*, quick: bool) -> list[Row]:
    """Rounds of the two batches alternate. The schema asks for more than there are tokens for."""
    rounds, tokens = (2, 24) if quick else (6, 48)
    texts = [f"Write a very long story about {subject}." for subject in SUBJECTS]
    batches = {"free": [_FREE] * 8, "mixed": [_FREE, _JSON] * 4}
    rates: dict[str, list[float]] = {name: [] for name in batches}
    with tempfile.TemporaryDirectory() as base:
        config = models_config(**{MODEL: starter_model()}) + "[memory]\nspare = false\n"
        with Service(Path(base) / "home", config=config) as service:
            for number in range(-1, rounds):
                for name in sorted(batches, reverse=bool(number % 2)):
                    timing = asyncio.run(through_the_system(service.url, texts, tokens, batches[name]))
                    if timing.tokens != tokens * len(texts):
                        raise RuntimeError(f"an answer ended by itself: {timing}")
                    if number >= 0:  # the first round of each warms up
                        rates[name].append(timing.decode_per_s)
    goal = ">= 0.85 of eight free rows"
    return [row("4 free and 4 JSON rows: decoding", "tok/s", rates["mixed"], rates["free"], goal=goal)]

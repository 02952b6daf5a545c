"""The next turn of a long conversation: the time to its first token through the whole system, against the
prefill of its new tokens alone, with the state of all others at hand.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.client import Message, stream_chat
from tests.bench.direct import Direct
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import tiny_model

MODEL: Final = "smollm2-135m"
OTHER: Final = "other"
_LENGTH: Final = 600
"""Tokens of the conversation so far, at least."""
_QUESTIONS: Final = (
    "How do I keep the lamp dry when the waves come over the rail, and who pays for the oil?",
    "Which of these should I do first if the ship is late and the crew wants to go ashore?",
    "What would an old captain say about the second point, and would you agree with him?",
    "Name the one thing that most people forget on the first day, and tell me why they do.",
    "Can you say that again in plain words for somebody who has never been on a boat?",
    "Is there anything in what you told me that is not true in winter or far in the north?",
)


def measure(*, quick: bool) -> list[Row]:
    """Rounds of the two sides alternate; every round asks something else."""
    rounds = 3 if quick else len(_QUESTIONS)
    folder = starter_model()
    config = models_config(**{MODEL: folder, OTHER: tiny_model()})
    config += '[memory]\nspare = false\n[defaults]\nexclusive = true\nhold = "0s"\n'
    with (
        tempfile.TemporaryDirectory() as base,
        Direct(folder) as direct,
        Service(Path(base) / "home", config=config) as service,
    ):
        history = asyncio.run(_conversation(service.url))
        bench = _Bench(service.url, direct, history)
        bench.round(_QUESTIONS[-1])
        warm = [bench.round(question) for question in _QUESTIONS[:rounds]]
        back = []
        for question in reversed(_QUESTIONS[:rounds]):
            asyncio.run(stream_chat(service.url, OTHER, "Hello", 4))
            # Loading the model again is measured elsewhere.
            asyncio.run(stream_chat(service.url, MODEL, "Hello", 4))
            back.append(bench.round(question))
    goal = "<= 1.3 of the prefill alone"
    return [
        _row(f"next turn after {bench.known} tokens: first token", warm, goal),
        _row("the same after another model took its place and it came back", back, goal),
    ]


def _row(what: str, times_s: list[tuple[float, float]], goal: str) -> Row:
    ours, alone = ([1000 * side for side in sides] for sides in zip(*times_s, strict=True))
    return row(what, "ms", ours, alone, goal=goal)


async def _conversation(url: str) -> list[Message]:
    """Turns of some hundred tokens each, as the model itself answers."""
    messages: list[Message] = [
        {"role": "system", "content": "You teach people to sail old ships. Give long and full answers."}
    ]
    tokens = 0
    while tokens < _LENGTH:
        messages.append({"role": "user", "content": f"Lesson {len(messages)}: tell me all I must know."})
        answer = await stream_chat(url, MODEL, messages, 160, ignore_eos=True)
        messages.append({"role": "assistant", "content": answer.text})
        tokens = answer.prompt_tokens + answer.completion_tokens
    return messages


class _Bench:
    def __init__(self, url: str, direct: Direct, history: list[Message]) -> None:
        self._url = url
        self._direct = direct
        self._history = history
        self.known = 0
        """Tokens of the conversation that needed no computing in the last round."""

    def round(self, question: str) -> tuple[float, float]:
        """Seconds to the first token: through the system, and of the prefill alone."""
        messages = [*self._history, {"role": "user", "content": question}]
        answer = asyncio.run(stream_chat(self._url, MODEL, messages, 2))
        if answer.cached_tokens < _LENGTH - 50:
            raise RuntimeError(f"the conversation was not warm: {answer.cached_tokens} tokens were known")
        self.known = answer.cached_tokens
        return answer.first_s, self._direct.turn(messages, answer.cached_tokens).first_s

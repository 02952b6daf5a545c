"""mlx-lm's own generators, without any server: a process that is told what to generate, line by line.

The model is loaded by the worker's own code, so both sides compute with the same weights in the same way.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import msgspec


class Timing(msgspec.Struct, frozen=True):
    """One generation of `tokens` tokens in all rows together; seconds after its start."""

    prompt_tokens: int
    tokens: int
    first_s: float
    """The last row's first token: from here on every row decodes."""
    decoded: int
    """Tokens after that moment."""
    end_s: float

    @property
    def decode_per_s(self) -> float:
        return self.decoded / (self.end_s - self.first_s)

    @property
    def total_per_s(self) -> float:
        return self.tokens / self.end_s


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Answer all `texts`."""

    texts: list[str]
    max_tokens: int
    together: int
    """Rows that decode at once."""


class Turn(msgspec.Struct, frozen=True, tag=True):
    """Read a conversation of which the state of the first `cached` tokens is there, and say one token."""

    messages: list[dict[str, str]]
    cached: int


class Direct:
    """The process, for the one who measures. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.direct", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def generate(self, texts: list[str], max_tokens: int, *, together: int = 0) -> Timing:
        """Answer all `texts`: one with `stream_generate`, several with `BatchGenerator`.

        `together` rows decode at once; 0 means all.
        """
        return self._ask(Generate(texts, max_tokens, together or len(texts)))

    def turn(self, messages: list[dict[str, str]], cached: int) -> Timing:
        """Read what of a conversation is after its first `cached` tokens, which are not timed."""
        return self._ask(Turn(messages, cached))

    def _ask(self, task: Generate | Turn) -> Timing:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(msgspec.json.encode(task).decode(), file=self._process.stdin, flush=True)
        return msgspec.json.decode(self._process.stdout.readline(), type=Timing)


def timing(prompt_tokens: int, times_s: list[list[float]]) -> Timing:
    """From the time of every token of every row."""
    first = max(row[0] for row in times_s)
    return Timing(
        prompt_tokens=prompt_tokens,
        tokens=sum(len(row) for row in times_s),
        first_s=first,
        decoded=sum(1 for row in times_s for moment in row if moment > first),
        end_s=max(row[-1] for row in times_s),
    )


def _one(model: Any, prompt: list[int], max_tokens: int) -> list[list[float]]:
    from mlx_lm import stream_generate

    times: list[float] = []
    started = time.perf_counter()
    for _ in stream_generate(model.network, model.tokenizer, prompt, max_tokens=max_tokens):
        times.append(time.perf_counter() - started)
    return [times]


def _batch(model: Any, prompts: list[list[int]], max_tokens: int, together: int) -> list[list[float]]:
    from mlx_lm.generate import BatchGenerator

    ends = [[token] for token in sorted(model.end_tokens)]
    generator = BatchGenerator(
        model.network,
        stop_tokens=ends,
        completion_batch_size=together,
        prefill_batch_size=together,
    )
    started = time.perf_counter()
    rows = generator.insert(prompts, max_tokens=[max_tokens] * len(prompts))
    times: dict[int, list[float]] = {row: [] for row in rows}
    running = set(rows)
    while running:
        _, responses = generator.next()
        now = time.perf_counter() - started
        for response in responses:
            times[response.uid].append(now)
            if response.finish_reason is not None:
                running.discard(response.uid)
    generator.close()
    return list(times.values())


def _tokens(model: Any, messages: list[dict[str, str]]) -> list[int]:
    tokens: list[int] = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return tokens


def _generation(model: Any, task: Generate) -> Timing:
    prompts = [_tokens(model, [{"role": "user", "content": text}]) for text in task.texts]
    if len(prompts) == 1:
        times = _one(model, prompts[0], task.max_tokens)
    else:
        times = _batch(model, prompts, task.max_tokens, task.together)
    return timing(sum(map(len, prompts)), times)


class _Turns:
    """Turns of one conversation, whose state is computed once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: list[int] = []
        self._state: list[Any] = []

    def measure(self, task: Turn) -> Timing:
        import mlx.core as mx
        from mlx_lm.generate import generate_step
        from mlx_lm.models.cache import make_prompt_cache

        tokens = _tokens(self._model, task.messages)
        if tokens[: task.cached] != self._known:
            self._known, self._state = tokens[: task.cached], make_prompt_cache(self._model.network)
            self._model.network(mx.array([self._known]), cache=self._state)
            mx.eval([layer.state for layer in self._state])
        # What is computed now is written behind what is known.
        for layer in self._state:
            layer.trim(layer.offset - task.cached)
        started = time.perf_counter()
        new = mx.array(tokens[task.cached :])
        next(iter(generate_step(new, self._model.network, max_tokens=1, prompt_cache=self._state)))
        return timing(len(tokens), [[time.perf_counter() - started]])


def main() -> None:
    from worker.__main__ import import_engine

    import_engine()
    from shared.launch import Options
    from worker.model.loading import load

    model = load(Path(sys.argv[1]), Options(), lambda progress: None)
    turns = _Turns(model)
    for line in sys.stdin:
        task = msgspec.json.decode(line, type=Generate | Turn)
        measured = turns.measure(task) if isinstance(task, Turn) else _generation(model, task)
        sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""mlx-lm's own generators, without any server: a process that is told what to generate, line by line.

The model is loaded by the worker's own code, so both sides compute with the same weights in the same way.
"""

import json
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

    def generate(self, texts: list[str], max_tokens: int) -> Timing:
        """Answer all `texts`: one with `stream_generate`, several with `BatchGenerator`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([texts, max_tokens]), file=self._process.stdin, flush=True)
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


def _batch(model: Any, prompts: list[list[int]], max_tokens: int) -> list[list[float]]:
    from mlx_lm.generate import BatchGenerator

    ends = [[token] for token in sorted(model.end_tokens)]
    generator = BatchGenerator(
        model.network,
        stop_tokens=ends,
        completion_batch_size=len(prompts),
        prefill_batch_size=len(prompts),
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


def main() -> None:
    from worker.__main__ import import_engine

    import_engine()
    from shared.launch import Options
    from worker.model.loading import load

    model = load(Path(sys.argv[1]), Options(), lambda progress: None)
    for line in sys.stdin:
        texts, max_tokens = json.loads(line)
        prompts = [
            model.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True
            )
            for text in texts
        ]
        if len(prompts) == 1:
            times = _one(model, prompts[0], max_tokens)
        else:
            times = _batch(model, prompts, max_tokens)
        measured = timing(sum(map(len, prompts)), times)
        sys.stdout.write(msgspec.json.encode(measured).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

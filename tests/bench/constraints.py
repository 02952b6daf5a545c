"""What constraints cost: steps of a batch of eight, free, half constrained and all constrained.

Run `python -m tests.bench.constraints [--model tiny|starter] [--steps N]`. The batches take steps in turn, so
that what else the machine does meets all of them alike. The medians of the CPU time of steps are compared.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from shared.launch import Options
from worker.model.backend import prepare_backend

ROWS = 8
PROMPT = "Write a long recipe for a soup."
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "steps": {"type": "array", "items": {"type": "string"}, "minItems": 100},
    },
    "required": ["title", "steps"],
}


class Times:
    """Of the steps of one batch, in seconds."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []

    def measure(self, step: Callable[[], object]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        step()
        self.cpu_s.append(time.process_time() - cpu)
        self.wall_s.append(time.perf_counter() - wall)


class Bench:
    """One loaded model, for batches of `steps` steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        from mlx_lm.sample_utils import make_sampler

        from worker.engine.constraint_masks import Masks
        from worker.engine.constraint_tokens import Vocabulary
        from worker.engine.constraints import compile_spec
        from worker.model.loading import load
        from worker.text.grammar.spec import Spec

        model = load(folder, Options(), lambda _: None)
        self._network = model.network
        self._prompt = list(model.tokenizer.encode(PROMPT))
        self._steps = steps
        self._sampler = make_sampler(1.0)
        width = int(self._network.args.vocab_size)
        self.masks = Masks(Vocabulary(model.tokenizer, width=width, end_tokens=model.end_tokens))
        begun = time.perf_counter()
        prepared = compile_spec(Spec("json_schema", json.dumps(SCHEMA)), self.masks.vocabulary)
        self.compile_s = time.perf_counter() - begun
        assert prepared.compiled is not None
        self._compiled = prepared.compiled

    def batch(self, constrained: int, *, one_by_one: bool = False) -> Callable[[], object]:
        """A batch whose rows all decode; what it returns takes one step.

        `one_by_one` runs the constraints as logits processors of mlx-lm's own generator.
        """
        import mlx.core as mx
        from mlx_lm.generate import BatchGenerator

        from worker.engine.generator import RowGenerator

        kind: Any = BatchGenerator if one_by_one else RowGenerator
        generator: Any = kind(self._network, stream=mx.default_stream(mx.default_device()))
        controls = [self._compiled.control(self.masks) for _ in range(constrained)]
        generator.insert(
            [self._prompt] * ROWS,
            max_tokens=[self._steps + 10] * ROWS,
            samplers=[self._sampler] * ROWS,
            logits_processors=[[control] for control in controls] + [[]] * (ROWS - constrained),
        )
        while not generator.next()[1]:
            pass

        def step() -> None:
            generator.next()
            # What was begun for the next step must not be counted in another batch's.
            mx.synchronize()

        return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("tiny", "starter"), default="starter")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    prepare_backend()
    bench = Bench(_folder(options.model), options.steps)
    batches = {
        "8 free": bench.batch(0),
        "4 free + 4 JSON": bench.batch(4),
        "8 JSON": bench.batch(8),
        "4 free + 4 JSON, one by one": bench.batch(4, one_by_one=True),
    }
    times = {name: Times() for name in batches}
    for _ in range(options.steps):
        for name, step in batches.items():
            times[name].measure(step)
    print(f"compiled in {bench.compile_s * 1000:.1f} ms; logits {bench.masks.vocabulary.width} wide")
    free = median(times["8 free"].cpu_s)
    for name, taken in times.items():
        cpu, wall = median(taken.cpu_s), median(taken.wall_s)
        print(f"{name:28} {cpu * 1000:8.2f} ms CPU {wall * 1000:8.2f} ms a step {free / cpu:6.3f} of free")


def _folder(name: str) -> Path:
    from tests.fixtures.starter import starter_model
    from tests.fixtures.tiny import Tiny, tiny_model

    return starter_model() if name == "starter" else tiny_model(Tiny("qwen3", layers=8, hidden=256))


if __name__ == "__main__":
    main()

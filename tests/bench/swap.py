"""Models that change places: what the policy costs, what a swap costs over the load, how often one comes."""

import itertools
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from supervisor.workers.actions import Action, Admit, Refuse, Spawn, Stop, Traits
from supervisor.workers.residency import Residency
from tests.bench.load import wait_for_quiet
from tests.bench.report import Row, row
from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.nursery import ROOT
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import Tiny, tiny_model

_DECISIONS = 10_000
_REQUESTS = 100
_CLIENTS = 10
_NUMBERS: Final = itertools.count(100)
# One model at a time, and no wait for one that nobody comes back to.
_ALONE = '[defaults]\nexclusive = true\nhold = "0s"\n'


def measure(*, quick: bool) -> list[Row]:
    """The pure policy, then whole swaps with a spare, then many clients on three models."""
    rounds = 2 if quick else 6
    decisions = [_decide() for _ in range(rounds)]
    rows = [
        row(f"{_DECISIONS:,} decisions about three models with room for one", "s", decisions, goal="< 1 s")
    ]
    pairs = {
        "smollm2-135m and tiny": (starter_model(), tiny_model()),
        "smollm2-135m twice": (starter_model(), starter_model()),
    }
    with tempfile.TemporaryDirectory() as base:
        for number, (name, (first, second)) in enumerate(pairs.items()):
            config = _ALONE + models_config(a=first, b=second)
            with Service(Path(base) / f"pair-{number}", config=config) as service:
                rows += _swaps(service, name, {"a": first, "b": second}, rounds)
        rows += _crowd(Path(base), 1 if quick else 2)
    return rows


def _decide() -> float:
    """Requests for three models in turn; each decision, and what follows from it, goes through the policy."""
    policy = Residency(10)
    models = [Traits(name, cost_bytes=6) for name in "abc"]
    made = request = 0
    started = time.perf_counter()
    while made < _DECISIONS:
        now = time.perf_counter() - started
        todo: list[Action] = policy.arrived(request, models[request % 3], now)
        made += 1
        request += 1
        while todo:
            made += 1
            match todo.pop(0):
                case Spawn(model):
                    todo += policy.ready(model, now)
                case Stop(model, _):
                    todo += policy.gone(model, now)
                case Admit(number, _):
                    todo += policy.left(number, now)
                case Refuse() as refused:
                    raise AssertionError(refused)
                case _:
                    pass
    return time.perf_counter() - started


def _swaps(service: Service, name: str, folders: dict[str, Path], rounds: int) -> list[Row]:
    """A -> B -> A, each against bringing the same weights into memory in a process that has all imported.

    The answer itself takes its time too, on a loaded model as well: that is told apart.
    """
    whole: list[float] = []
    loads: list[float] = []
    answers: list[float] = []
    _first_token(service, "a")
    for _ in range(rounds):
        for model in ("b", "a"):
            loads.append(_weights_alone(folders[model]))
            # The next spare has its imports done by then, as it has for people.
            wait_for_quiet(service)
            whole.append(_first_token(service, model))
            wait_for_quiet(service)
            answers.append(_first_token(service, model))
    over = [a - b for a, b in zip(whole, loads, strict=True)]
    swap = [a - b for a, b in zip(over, answers, strict=True)]
    return [
        row(f"{name}: swap with a spare, request to answer, against the weights alone", "s", whole, loads),
        row(f"{name}: the same request to the loaded model", "s", answers),
        row(f"{name}: what a swap takes over the weights, its answer included", "s", over, goal="<= 0.3 s"),
        row(f"{name}: without the answer", "s", swap, goal="<= 0.3 s"),
    ]


def _first_token(service: Service, model: str) -> float:
    """Seconds. Each text is as long as the others and begins otherwise: nothing of it is computed already."""
    system = {"role": "system", "content": f"{next(_NUMBERS)} conversations were had before this one."}
    messages = [system, {"role": "user", "content": "Hello"}]
    started = time.perf_counter()
    service.chat(model, messages=messages, max_tokens=1, temperature=0).raise_for_status()
    return time.perf_counter() - started


def _weights_alone(folder: Path) -> float:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from worker.__main__ import import_engine; import_engine()\n"
        "from worker.model.network import evaluate, load_network\n"
        "started = time.perf_counter(); network, _ = load_network(Path(sys.argv[1]))\n"
        "evaluate(network, lambda _: None)\n"
        "print(time.perf_counter() - started)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _crowd(base: Path, rounds: int) -> list[Row]:
    """Clients that go from model to model, with room for one."""
    folders = {
        "a": tiny_model(),
        "b": tiny_model(Tiny(architecture="qwen3")),
        "c": tiny_model(Tiny(seed=1)),
    }
    loads = [_weights_alone(folder) for folder in folders.values()]
    swaps: list[float] = []
    lost: list[float] = []
    each: list[float] = []
    for number in range(rounds):
        with Service(base / f"crowd-{number}", config=_ALONE + models_config(**folders)) as service:
            names = [list(folders)[index % 3] for index in range(_REQUESTS)]
            started = time.perf_counter()
            with ThreadPoolExecutor(_CLIENTS) as clients:
                answers = list(clients.map(lambda name: service.chat(name, max_tokens=4), names))
            took_s = time.perf_counter() - started
            lost.append(sum(answer.status_code != 200 for answer in answers))
            log = (service.home / "logs" / "supervisor.log").read_text()
            swaps.append(log.count("worker.starting"))
            each.append(took_s / swaps[-1] - sum(loads) / len(loads))
    return [
        row(
            f"{_REQUESTS} requests, {_CLIENTS} clients, three models, room for one: lost",
            "",
            lost,
            goal="0",
        ),
        row("the same: loads", "", swaps, goal=f"<= {_REQUESTS // 2}"),
        row("the same: time of a turn over the weights, answers included", "s", each),
    ]

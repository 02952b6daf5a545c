"""`make bench`: measures, prints, and writes build/bench.json.

    make bench                           everything, about twenty minutes
    make bench ARGS="--quick"            the same with few rounds, about seven
    make bench ARGS="engine start"       only these parts

Whatever has something to compare with is measured in alternating rounds in one run: on machines that other
work shares, only ratios mean something.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    cancel,
    catalog,
    cli,
    crowd,
    engine,
    faults,
    forwarding,
    load,
    mixed,
    scrape,
    start,
    swap,
    translation,
    warm,
)
from tests.bench.report import Row, machine, print_part, write_report

PARTS: dict[str, tuple[str, Callable[..., list[Row]]]] = {
    "forwarding": ("forwarding: our front against nginx", forwarding.measure),
    "start": ("supervisor: start, memory, idle", start.measure),
    "cli": ("the command line, over a Python that does nothing", cli.measure),
    "scrape": ("a metrics scraper and a follower of events", scrape.measure),
    "catalog": ("catalog: two thousand models on the disk", catalog.measure),
    "load": ("first request to a model that is not loaded", load.measure),
    "swap": ("models that change places", swap.measure),
    "engine": ("engine: through the whole system against mlx-lm alone", engine.measure),
    "translation": ("streams of messages and responses against a chat's", translation.measure),
    "mixed": ("half of a batch constrained to JSON, against none", mixed.measure),
    "warm": ("the next turn of a conversation against the prefill of its new tokens", warm.measure),
    "cancel": ("a client leaves", cancel.measure),
    "crowd": ("fifty at once", crowd.measure),
    "faults": ("what breaks, and how soon that is over", faults.measure),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure mlx-supervisor.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a measurement")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the JSON goes")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    # As Ctrl-C does: what was started ends, folders go.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    facts = machine()
    results: dict[str, list[Row]] = {}
    for name in arguments.parts or PARTS:
        title, measure = PARTS[name]
        started = time.monotonic()
        results[name] = measure(quick=arguments.quick)
        print_part(f"{title} ({time.monotonic() - started:.0f} s)", results[name])
        # After each part, so that what was measured is kept when a later one fails.
        write_report(arguments.out, facts, results)
    print(f"\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

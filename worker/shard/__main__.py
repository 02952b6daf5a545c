"""A rank of a sharded model other than the first. Rank 0 starts it: `python -m worker.shard`.

It computes its part of every step that rank 0 takes. Record and orders come on stdin. When it is there, and
what it can't do, it says on stdout, as a worker does through its status pipe; stderr is for the log.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from shared import __version__
from shared.status import ExitCode, Failed, FailureKind, Warm, encode_status
from worker.model.backend import prepare_backend
from worker.shard.orders import (
    Allow,
    Forget,
    Insert,
    Join,
    Open,
    Order,
    RankRecord,
    Remove,
    Resize,
    Settle,
    Shrink,
    Step,
    decode_order,
)

if TYPE_CHECKING:
    from worker.shard.batch import Clock, FollowingBatch

log = logging.getLogger("worker.shard")

STARTED: Final = time.monotonic()
_REST_S: Final = 2.0
"""After so long without an order the memory that mlx keeps for reuse is given back."""


class Lifeline(threading.Thread):
    """Reads orders; the end of stdin means that rank 0 is gone, and that ends this process at once, even in
    the middle of a sum that will never be complete."""

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self.lines: SimpleQueue[bytes] = SimpleQueue()

    def run(self) -> None:
        with os.fdopen(0, "rb", closefd=False) as stdin:
            for line in stdin:
                self.lines.put(line)
        os._exit(ExitCode.OK)


def fail(kind: FailureKind, message: str) -> NoReturn:
    """Say why and end."""
    os.write(1, encode_status(Failed(kind, message)))
    sys.stderr.flush()
    os._exit(ExitCode.FAILED)


def follow(lifeline: Lifeline, record: RankRecord) -> None:
    """Load this rank's part and do what comes."""
    import mlx.core as mx

    from worker.engine.needs import measure
    from worker.engine.prompt_cache import PromptCache
    from worker.model.failures import explain
    from worker.shard.batch import Clock, FollowingBatch
    from worker.shard.group import join
    from worker.shard.loading import load_shard

    directory, options = Path(record.directory), record.options
    assert options.shards is not None
    try:
        if not (directory / "config.json").is_file():
            raise FileNotFoundError(f"there is no model in {directory}; where it is on the first machine")
        # Who joins waits for the others, deaf to all else: so nobody does before all are there.
        os.write(1, encode_status(Warm(import_s=time.monotonic() - STARTED)))
        if not isinstance(decode_order(lifeline.lines.get()), Join):
            raise AssertionError("the first order is to join")
        group = join(options.shards, record.rank, record.addresses)
        network, _, _ = load_shard(directory, group, lambda progress: None)
        # As rank 0 does, which learns from it.
        measure(network)
    except Exception as error:
        log.exception("this rank's part of the model could not be loaded")
        failure = explain(error)
        fail(failure.kind, str(failure))
    clock = Clock()
    batch: FollowingBatch | None = None
    cache: PromptCache | None = None
    while True:
        try:
            order = decode_order(lifeline.lines.get(timeout=_REST_S))
        except Empty:
            mx.clear_cache()
            order = decode_order(lifeline.lines.get())
        if isinstance(order, Open):
            cache = PromptCache(order.prompt_bytes, clock=clock)
            batch = FollowingBatch(
                network,
                order.end_tokens,
                max_rows=options.max_concurrency,
                prefill_step=options.prefill_step,
                prompts=cache,
            )
            continue
        assert batch is not None and cache is not None
        obey(order, batch, cache, clock)


def obey(order: Order, batch: "FollowingBatch", cache: object, clock: "Clock") -> None:
    """Do what rank 0 does."""
    from worker.engine.prompt_cache import PromptCache
    from worker.engine.rows import Row
    from worker.request import Sampling

    assert isinstance(cache, PromptCache) and not isinstance(order, Join | Open)
    if isinstance(order, Allow):
        batch.allow(order.row, order.tokens)
        return
    clock.now = order.now
    match order:
        case Insert():
            batch.insert(
                Row(
                    id=order.id,
                    prompt=order.prompt,
                    max_tokens=order.max_tokens,
                    sampling=Sampling(temperature=0.0),
                    ignore_eos=order.ignore_eos,
                    stop_tokens=order.stop_tokens,
                    family=order.family,
                    session=order.session,
                    boundaries=order.boundaries,
                    said=order.said,
                    whole=order.whole,
                )
            )
        case Remove():
            batch.remove(order.row)
        case Forget():
            batch.forget(order.family)
        case Step():
            batch.chunk = order.chunk
            batch.step()
            batch.cached()
        case Settle():
            batch.settle_as(order.sizes)
        case Shrink():
            cache.shrink(order.bytes)
        case Resize():
            cache.resize(order.bytes)


def main() -> NoReturn:
    # Ctrl-C reaches the whole process group; rank 0 ends when it is told to, and this one with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    lifeline = Lifeline()
    lifeline.start()
    try:
        record = msgspec.json.decode(lifeline.lines.get(), type=RankRecord)
    except msgspec.MsgspecError as error:
        fail(FailureKind.UNSUPPORTED, f"rank 0 is of another version than its own, {__version__}: {error}")
    if record.protocol != __version__:
        fail(FailureKind.UNSUPPORTED, f"it is version {__version__} and rank 0 is {record.protocol}")
    shards = record.options.shards
    if shards is not None:
        # Some of them are read when mlx is imported.
        os.environ.update(shards.environment)
    prepare_backend()
    try:
        follow(lifeline, record)
    except Exception:
        log.exception("this rank failed")
    sys.stderr.flush()
    os._exit(ExitCode.ENGINE)


if __name__ == "__main__":
    main()

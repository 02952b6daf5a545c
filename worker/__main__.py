"""The model process: says hello at once, imports, waits for its launch record, serves one model.

Started with the descriptor of a launch record, it has no supervisor: it serves on the public port by itself.

Only light imports here: `hello` and the lifeline must not wait for mlx and transformers.
"""

import asyncio
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from shared import __version__
from shared.launch import (
    RECORD_FD_ARGUMENT,
    LaunchRecord,
    Preview,
    RecordError,
    parse_line,
    parse_record,
)
from shared.sockets import unlink_quietly
from shared.status import STATUS_FD_ARGUMENT, ExitCode, Failed, Hello, Status, Warm, encode_status
from worker.model.backend import prepare_backend
from worker.terminal import Terminal

if TYPE_CHECKING:
    from worker.engine.thread import Engine
    from worker.model.ahead import Ahead

log = logging.getLogger(__name__)

Say = Callable[[Status], None]

MAX_RECORD_BYTES: Final = 2**20


class StatusPipe:
    """Our end of the status pipe. A reader that is gone is no error: the lifeline will tell."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def say(self, status: Status) -> None:
        if isinstance(status, Failed):
            log.error("the model could not be loaded: %s", status.message)
        try:
            os.write(self._descriptor, encode_status(status))
        except OSError:
            self._descriptor = -1


class Lifeline(threading.Thread):
    """Reads stdin: previews, the launch record, then the end, which means that the supervisor is gone.

    A thread of its own, so that it also sees the end while the loop and the engine are in native code.
    """

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self.told: queue.SimpleQueue[Preview | LaunchRecord] = queue.SimpleQueue()
        """Nothing comes after the record."""
        self.socket: Path | None = None
        """Our socket's file, once it is ours."""

    def run(self) -> None:
        rest = b""
        told: Preview | LaunchRecord | None = None
        while not isinstance(told, LaunchRecord):
            line, ended, after = rest.partition(b"\n")
            if not ended:
                piece = os.read(0, 65536)
                if not piece:
                    leave(ExitCode.OK)  # a spare that is not needed any more
                rest += piece
                if len(rest) > MAX_RECORD_BYTES:
                    refuse("the launch record is too long")
                continue
            rest = after
            try:
                told = parse_line(line)
            except RecordError as error:
                refuse(str(error))
            self.told.put(told)
        while os.read(0, 65536):
            pass
        # The supervisor is gone, and so are we: there is nothing yet that would take time to flush.
        if self.socket is not None:
            unlink_quietly(self.socket)
        leave(ExitCode.OK)


def leave(code: int) -> NoReturn:
    """End the process now, whatever its other threads do: the engine may be deep in native code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def refuse(reason: str) -> NoReturn:
    """End for want of a usable launch record or command line."""
    sys.stderr.write(f"{reason}\n")
    leave(ExitCode.USAGE)


def read_record(descriptor: int) -> LaunchRecord:
    """The launch record of a worker without a supervisor, and with it the descriptors that it names."""
    with os.fdopen(descriptor, "rb") as file:
        line = file.read(MAX_RECORD_BYTES)
    try:
        record = parse_record(line)
    except RecordError as error:
        refuse(str(error))
    if record.public is None:
        refuse(f"the launch record of {RECORD_FD_ARGUMENT} has no public part")
    for inherited in (record.public.listener, record.public.lock):
        os.set_inheritable(inherited, False)
    return record


def import_engine() -> float:
    """Import everything heavy, in the order that matters. Returns the seconds it took."""
    started = time.monotonic()
    # What is imported stays: to look for garbage in it costs a tenth of the time now, and would stall
    # generation later.
    gc.disable()
    prepare_backend()
    import uvloop  # noqa: F401

    import worker.app  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.enable()
    return time.monotonic() - started


def begin() -> "tuple[Engine, Ahead]":
    """The engine's thread, and nothing ready yet. After the imports."""
    from worker.engine.thread import Engine
    from worker.model.ahead import Ahead

    return Engine(), Ahead()


def look_ahead(preview: Preview, engine: "Engine", ahead: "Ahead") -> None:
    """Get ready what can be of the model that is likely to be told next."""
    if preview.directory is None:
        engine.prepare(ahead.forget)
        return
    directory = Path(preview.directory)
    ahead.read(directory, preview.chat_template)
    engine.prepare(lambda: ahead.build(directory))


async def serve(
    record: LaunchRecord,
    say: Say,
    bound: Callable[[Path], None],
    signals: Sequence[signal.Signals],
    engine: "Engine",
    ahead: "Ahead",
) -> int:
    """Run the application until one of `signals` tells it to stop. Returns the exit code."""
    from worker.app import App

    app = App(record, say, bound, engine, ahead)

    def terminate() -> None:
        app.stop()
        # The second one means now.
        for number in signals:
            loop.add_signal_handler(number, leave, ExitCode.OK)

    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, terminate)
    return await app.run()


def run(
    record: LaunchRecord,
    say: Say,
    bound: Callable[[Path], None],
    *signals: signal.Signals,
    engine: "Engine",
    ahead: "Ahead",
) -> NoReturn:
    """Serve on a loop of its own, then end the process. `ahead` is what was ready before the record came."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        leave(runner.run(serve(record, say, bound, signals, engine, ahead)))


def log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def main() -> NoReturn:
    match sys.argv[1:]:
        case [name, text] if name == STATUS_FD_ARGUMENT and text.isdecimal():
            serve_supervisor(int(text))
        case [name, text] if name == RECORD_FD_ARGUMENT and text.isdecimal():
            serve_public(read_record(int(text)))
        case _:
            refuse(f"usage: python -m worker {STATUS_FD_ARGUMENT} N; the supervisor starts workers")


def serve_public(record: LaunchRecord) -> NoReturn:
    """Serve without a supervisor, which had settled everything before it became this program."""
    assert record.public is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _signal, _frame: leave(ExitCode.OK))
    log_to_stderr()
    terminal = Terminal(record.model, record.public.url)
    import_engine()
    engine, ahead = begin()
    run(record, terminal.say, lambda _: None, signal.SIGINT, signal.SIGTERM, engine=engine, ahead=ahead)


def serve_supervisor(descriptor: int) -> NoReturn:
    """Serve on a private socket; `descriptor` is the status pipe's."""
    # Ctrl-C reaches the whole process group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: leave(ExitCode.OK))
    status = StatusPipe(descriptor)
    status.say(Hello(version=__version__, pid=os.getpid()))
    lifeline = Lifeline()
    lifeline.start()
    log_to_stderr()
    status.say(Warm(import_s=import_engine()))
    engine, ahead = begin()
    while isinstance(told := lifeline.told.get(), Preview):
        look_ahead(told, engine, ahead)

    def bound(path: Path) -> None:
        lifeline.socket = path

    run(told, status.say, bound, signal.SIGTERM, engine=engine, ahead=ahead)


if __name__ == "__main__":
    main()

"""The model process: says hello at once, imports, waits for its launch record, serves one model.

Only light imports here: `hello` and the lifeline must not wait for mlx and transformers.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NoReturn

from shared import __version__
from shared.launch import LaunchRecord, RecordError, parse_record
from shared.sockets import unlink_quietly
from shared.status import STATUS_FD_ARGUMENT, ExitCode, Hello, Status, Warm, encode_status
from worker.model.backend import prepare_backend

MAX_RECORD_BYTES: Final = 2**20


class StatusPipe:
    """Our end of the status pipe. A reader that is gone is no error: the lifeline will tell."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def say(self, status: Status) -> None:
        try:
            os.write(self._descriptor, encode_status(status))
        except OSError:
            self._descriptor = -1


class Lifeline(threading.Thread):
    """Reads stdin: the launch record, then the end, which means that the supervisor is gone.

    A thread of its own, so that it also sees the end while the loop and the engine are in native code.
    """

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self.record: Future[LaunchRecord] = Future()
        self.socket: Path | None = None
        """Our socket's file, once it is ours."""

    def run(self) -> None:
        line = b""
        while b"\n" not in line:
            piece = os.read(0, 65536)
            if not piece:
                leave(ExitCode.OK)  # a spare that is not needed any more
            line += piece
            if len(line) > MAX_RECORD_BYTES:
                refuse("the launch record is too long")
        try:
            record = parse_record(line.partition(b"\n")[0])
        except RecordError as error:
            refuse(str(error))
        self.record.set_result(record)
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


def status_descriptor(arguments: list[str]) -> int:
    """The descriptor that the command line names."""
    match arguments:
        case [name, text] if name == STATUS_FD_ARGUMENT and text.isdecimal():
            return int(text)
        case _:
            refuse(f"usage: python -m worker {STATUS_FD_ARGUMENT} N; the supervisor starts workers")


def import_engine() -> float:
    """Import everything heavy, in the order that matters. Returns the seconds it took."""
    started = time.monotonic()
    prepare_backend()
    import worker.app  # noqa: F401

    # What is imported stays: looking through it again and again would stall generation.
    gc.collect()
    gc.freeze()
    return time.monotonic() - started


async def serve(record: LaunchRecord, status: StatusPipe, lifeline: Lifeline) -> int:
    """Run the application until it is told to stop. Returns the exit code."""
    from worker.app import App

    app = App(record, status.say, lambda path: setattr(lifeline, "socket", path))

    def terminate() -> None:
        app.stop()
        # The second one means now.
        loop.add_signal_handler(signal.SIGTERM, leave, ExitCode.OK)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    return await app.run()


def main() -> NoReturn:
    # Ctrl-C reaches the whole process group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: leave(ExitCode.OK))
    status = StatusPipe(status_descriptor(sys.argv[1:]))
    status.say(Hello(version=__version__, pid=os.getpid()))
    lifeline = Lifeline()
    lifeline.start()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    status.say(Warm(import_s=import_engine()))
    record = lifeline.record.result()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        leave(runner.run(serve(record, status, lifeline)))


if __name__ == "__main__":
    main()

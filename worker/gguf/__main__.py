"""`python -m worker.gguf FILE --out FOLDER`: one import, told as JSON lines on stdout (shared.importing).

Exit codes: 0 imported, 1 could not (the last line says why), 2 usage, 143 told to stop.
"""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

from shared.importing import ImportEvent, ImportFailed, ImportProgress, encode_event
from worker.gguf.convert import import_gguf
from worker.gguf.errors import GgufError

_STOPPED: Final = 143
_PROGRESS_S: Final = 0.1


class _Reporter:
    """Prints events; of a phase's progress, a line each 0.1 s and the last."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, event: ImportEvent) -> None:
        if isinstance(event, ImportProgress) and event.done < event.total:
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + _PROGRESS_S
        try:
            os.write(sys.stdout.fileno(), encode_event(event))
        except BrokenPipeError:
            # Nobody listens any more: end, and leave nothing behind.
            sys.exit(_STOPPED)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # Unwinds the stack, so that the partial folder is removed.
    sys.exit(_STOPPED)


def _watch_lifeline() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m worker.gguf", description="Import a GGUF file as an mlx-lm model folder."
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the model folder to make")
    parser.add_argument("--lifeline", action="store_true", help="stop when stdin ends")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs one import; returns the exit code."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, _stop)
    if arguments.lifeline:
        # Ctrl-C reaches the whole group; whoever holds the lifeline decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()
    report = _Reporter()
    try:
        imported = import_gguf(arguments.file, arguments.out, report)
    except GgufError as error:
        report(ImportFailed(f"{arguments.file.name}: {error}"))
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        report(ImportFailed(f"{arguments.file.name}: {error.strerror or error}{where}"))
        return 1
    report(imported)
    return 0


if __name__ == "__main__":
    sys.exit(main())

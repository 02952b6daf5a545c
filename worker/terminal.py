"""What a worker that serves by itself says of its state: short lines for who started it."""

import contextlib
import sys
from typing import TextIO

from shared.status import Failed, Progress, Ready, Status


class Terminal:
    """Says on the terminal what a supervisor would hear through the status pipe."""

    def __init__(self, model: str, url: str) -> None:
        self._model = model
        self._url = url
        self._told = -1

    def say(self, status: Status) -> None:
        """Tell it, if it is news to a person."""
        match status:
            case Progress(phase="weights", done=done, total=total):
                tenth = 10 * done // total if total else 0
                if tenth > self._told:
                    self._told = tenth
                    _tell(sys.stdout, f"loading {self._model}: {10 * tenth} %")
            case Ready(load_s=load_s):
                loaded = f"model: {self._model}, loaded in {load_s:.1f} s"
                _tell(sys.stdout, f"serving on {self._url}/v1 · {loaded} · Ctrl-C ends it")
            case Failed(message=message):
                _tell(sys.stderr, f"mlx-supervisor: {self._model} can't be loaded: {message}")


def _tell(stream: TextIO, line: str) -> None:
    """A closed terminal is no reason to end."""
    with contextlib.suppress(OSError):
        stream.write(f"{line}\n")
        stream.flush()

"""The processes that a worker started, found so that none of them outlives it.

Most of this reads the system's whole process table (milliseconds), so it is called in a thread.
"""

import contextlib
import time
from collections.abc import Iterable
from typing import Final

import psutil

from supervisor.workers.environment import MARKER

LEAVE_S: Final = 0.3
_DIE_S: Final = 1.0
_POLL_S: Final = 0.01


def descendants(pid: int) -> list[psutil.Process]:
    """Everything that the process `pid` started and that still runs."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def marked(marker: str) -> list[psutil.Process]:
    """Every process that inherited `marker`: the way to find them when the worker itself is gone."""
    found = []
    for process in psutil.process_iter():
        # Other users' processes don't let us look, and need not: they are none of ours.
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                found.append(process)
    return found


def end(family: Iterable[psutil.Process], *, leave_s: float = LEAVE_S) -> int:
    """Give the processes `leave_s` to go by themselves, kill the rest; returns how many were killed.

    Helpers such as multiprocessing's resource tracker tidy up when their worker is gone, hence the wait.
    A pid that meanwhile belongs to another process is left alone: psutil compares start times.
    """
    alive = wait(family, leave_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait(alive, _DIE_S)
    return len(alive)


def wait(family: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run after `timeout_s`. They are no children of ours, so nobody tells us."""
    deadline = time.monotonic() + timeout_s
    while alive := [process for process in family if runs(process)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    return alive


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended. Reads of this process alone, so it takes a moment only."""
    # A zombie holds nothing any more; it only waits for its new parent, which may be slow to look. But one
    # whose first thread alone is gone is called so too, and then the others still hold its sockets.
    with contextlib.suppress(psutil.Error):
        return process.is_running() and (
            process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
        )
    return False

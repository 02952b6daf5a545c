"""Waiting for the end of processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from supervisor.cli import waiting

Wait = Callable[[int, float], bool]


def child(program: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


@pytest.mark.parametrize("wait", [waiting.wait_for_exit, waiting._poll])
def test_an_end_is_noticed_at_once_and_a_life_is_waited_for(wait: Wait) -> None:
    process = child("input()")
    try:
        assert not wait(process.pid, 0.1)
        # Reaped by somebody else meanwhile, as a shell does it.
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        assert process.stdin is not None
        process.stdin.close()
        started_s = time.monotonic()
        assert wait(process.pid, 20)
        assert time.monotonic() - started_s < 15
        reaper.join()
        assert wait(process.pid, 0), "a pid that nobody has"
    finally:
        process.kill()
        process.wait()


def test_a_zombie_has_ended() -> None:
    """Seen when the parent of the supervisor takes its time: `stop` waited for ever."""
    process = child("pass")
    assert process.stdin is not None
    process.stdin.close()
    # Ended, and still to be waited for.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert waiting.wait_for_exit(process.pid, 5)
    process.wait()

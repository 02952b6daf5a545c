"""Waits for the end of a process that is not our child."""

import os
import select
import sys
import time


def wait_for_exit(pid: int, timeout_s: float) -> bool:
    """Whether the process ended within `timeout_s`. A pid that nobody has counts as ended.

    So does a zombie, whose parent has yet to look: nothing of it runs any more. (psutil goes on waiting.)
    """
    try:
        if sys.platform == "linux":
            descriptor = os.pidfd_open(pid)
            try:
                return bool(select.select([descriptor], [], [], timeout_s)[0])
            finally:
                os.close(descriptor)
        elif sys.platform == "darwin":
            end = select.kevent(
                pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
            )
            queue = select.kqueue()
            try:
                return bool(queue.control([end], 1, timeout_s))
            finally:
                queue.close()
    except ProcessLookupError:
        return True
    except OSError:
        pass  # an old kernel, or a container that forbids the call: look now and then
    return _poll(pid, timeout_s)


def _poll(pid: int, timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.05)

"""`python -m supervisor.pulling`: a request on stdin, a download, events on stdout (shared.pulling).

Exit codes: 0 pulled, 1 could not (the last line says why), 2 no usable request, 143 told to stop.
"""

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Final, NoReturn

import msgspec

from shared.pulling import PullEvent, PullFailed, PullRequest, encode_event

_STOPPED: Final = 143
_LONGEST_REQUEST: Final = 1 << 20


def _leave() -> NoReturn:
    """End at once: every byte that was received is in its file already, and the kernel drops the lock."""
    os._exit(_STOPPED)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    _leave()


def _report(event: PullEvent) -> None:
    try:
        os.write(sys.stdout.fileno(), encode_event(event))
    except BrokenPipeError:
        _leave()


def _watch_lifeline() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _leave()


def main() -> int:
    """Runs one download; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    # Ctrl-C reaches the whole group; whoever holds the lifeline decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request = msgspec.json.decode(sys.stdin.buffer.readline(_LONGEST_REQUEST), type=PullRequest)
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"no usable request: {error}\n")
        return 2
    threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()
    from supervisor.pulling.errors import (
        PullError,
    )  # the client takes a while to import, and then listens to HF_*
    from supervisor.pulling.pull import pull

    # The client warns of each retry; what comes of them is told at the end.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        _report(pull(request, _report))
    except PullError as error:
        _report(PullFailed(error.code, str(error)))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Everything is written; to take the client apart takes longer than most downloads of what is there.
    os._exit(code)

"""A worker as a process of its own: its pipes, its signals, its end."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

from shared.launch import LaunchRecord, Options
from shared.status import STATUS_FD_ARGUMENT, Failed, Ready, Status, decode_status
from tests.fixtures.leaks import nothing_left
from tests.fixtures.tiny import tiny_model

ROOT = Path(__file__).parents[3]


class WorkerProcess:
    """`python -m module`, and the supervisor's ends of its pipes."""

    def __init__(self, folder: Path, module: str) -> None:
        self.socket = folder / "w.sock"
        self._log = folder / "stderr"
        reading, writing = os.pipe()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, STATUS_FD_ARGUMENT, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(writing,),
                cwd=ROOT,
            )
        os.close(writing)
        self.status = os.fdopen(reading, "rb")

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def record(self, directory: Path | None = None) -> LaunchRecord:
        return LaunchRecord(
            socket=str(self.socket),
            model="tiny",
            directory=str(directory or tiny_model()),
            generation=1,
            options=Options(),
        )

    def launch(self, line: bytes) -> None:
        self.stdin.write(line)
        self.stdin.flush()

    def next(self) -> Status:
        """The next status message."""
        return decode_status(self.status.readline())

    def settled(self) -> Ready | Failed:
        """The end of the load."""
        while not isinstance(status := self.next(), Ready | Failed):
            pass
        return status

    def serve(self) -> None:
        """Launch on a tiny model and wait until it serves."""
        self.launch(self.record().line())
        status = self.settled()
        assert isinstance(status, Ready), status

    def exit(self, within_s: float) -> int:
        return self.process.wait(within_s)

    def log(self) -> list[str]:
        return self._log.read_text().splitlines()

    def client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.socket), verify=False)
        return httpx.Client(transport=transport, base_url="http://worker", timeout=240)

    def has_private_socket(self) -> bool:
        mode = self.socket.lstat().st_mode
        return stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.status.close()


@contextlib.contextmanager
def worker_process(module: str = "worker") -> Iterator[WorkerProcess]:
    """A worker process that the test ends itself; nothing of it may be left."""
    folder = Path(tempfile.mkdtemp(prefix="wp-"))
    try:
        with nothing_left(folder):
            worker = WorkerProcess(folder, module)
            try:
                yield worker
                assert worker.process.poll() is not None, "the test did not end it"
            finally:
                worker.close()
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that the body takes no longer."""
    started = time.monotonic()
    yield
    took_s = time.monotonic() - started
    assert took_s <= seconds, f"took {took_s:.2f} s"

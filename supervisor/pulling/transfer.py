"""One file's bytes: fetched from where an earlier attempt stopped, checked, and then called by its name."""

import os
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx2

from shared.pulling import PullFile, RepoName
from supervisor.pulling.cache import RepoFolder
from supervisor.pulling.errors import DamagedError, PassingError, PullError
from supervisor.pulling.hub import Checksum, Hub

LARGEST_OVER_HTTP: Final = 50_000_000_000
"""The hub serves no larger file but by Xet, which the client speaks."""
_TRIES: Final = 5
"""Broken connections in a row, without a byte between them, until the file is given up."""
_READ_BYTES: Final = 8 << 20
_LONGEST_WAIT_S: Final = 8.0


class Stopped(Exception):  # noqa: N818  # nothing went wrong here: another file failed
    """Raised inside a transfer when the whole download has been given up."""


class Transfers:
    """The transfers of one download. Several threads call `told` with each change of what is there."""

    def __init__(
        self,
        hub: Hub,
        wanted: RepoName,
        commit: str,
        folder: RepoFolder,
        told: Callable[[int], None],
        *,
        retry_wait_s: float,
    ) -> None:
        self._hub = hub
        self._wanted = wanted
        self._commit = commit
        self._folder = folder
        self._told = told
        self._retry_wait_s = retry_wait_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let every transfer that is under way end soon, with Stopped."""
        self._stopping.set()

    def fetch(self, file: PullFile) -> None:
        """Have the whole file as a blob.

        Raises PullError, OSError from the disk, Stopped, and what has not passed after several tries.
        """
        if self._folder.has(file):
            return
        if file.size_bytes > LARGEST_OVER_HTTP:
            self._fetch_whole(file)
            return
        try:
            self._fill(file)
        except DamagedError:
            # Once may be the network, or what an older attempt had left behind.
            try:
                self._fill(file)
            except DamagedError as error:
                raise PullError(
                    "damaged",
                    f"{file.path} of {self._wanted.shown} arrived damaged twice ({error}) and was "
                    "thrown away; try again later",
                ) from error

    def _fetch_whole(self, file: PullFile) -> None:
        self._hub.fetch_whole(self._wanted, self._commit, file.path, self._folder.path.parent, self._told)
        checksum = Checksum(file.blob, file.size_bytes)
        blob = self._folder.blob(file.blob)
        with blob.open("rb") as content:
            while data := content.read(_READ_BYTES):
                self._raise_if_stopping()
                checksum.update(data)
        if not checksum.is_right():
            self._throw_away(blob, file.size_bytes)
            raise PullError(
                "damaged",
                f"{file.path} of {self._wanted.shown} arrived damaged and was thrown away; try again",
            )

    def _fill(self, file: PullFile) -> None:
        partial = self._folder.partial(file.blob)
        # Unbuffered: what was received is there for the next attempt, however this process ends.
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "r+b", buffering=0) as target:
            checksum = Checksum(file.blob, file.size_bytes)
            there = self._check_beginning(target.fileno(), file, checksum)
            tries = 0
            while there < file.size_bytes:
                before = there
                try:
                    there = self._receive(target.fileno(), file, there, checksum)
                except (httpx2.TransportError, PassingError):
                    there = os.lseek(target.fileno(), 0, os.SEEK_CUR)
                    tries = 0 if there > before else tries + 1
                    if tries >= _TRIES:
                        raise
                    self._pause(min(self._retry_wait_s * 2**tries, _LONGEST_WAIT_S))
                except _Restart:
                    self._told(-there)
                    there = 0
                    checksum = Checksum(file.blob, file.size_bytes)
                    os.ftruncate(target.fileno(), 0)
                    os.lseek(target.fileno(), 0, os.SEEK_SET)
            if not checksum.is_right():
                self._throw_away(partial, file.size_bytes)
                raise DamagedError("its checksum is wrong")
            # A name after a power cut must not mean less than it does now.
            os.fsync(target.fileno())
        partial.replace(self._folder.blob(file.blob))

    def _check_beginning(self, descriptor: int, file: PullFile, checksum: Checksum) -> int:
        """Read what is there of the file into the checksum; returns its size."""
        there = 0
        while data := os.read(descriptor, _READ_BYTES):
            self._raise_if_stopping()
            checksum.update(data)
            there += len(data)
        if there > file.size_bytes:
            self._throw_away(self._folder.partial(file.blob), file.size_bytes)
            raise DamagedError("it is longer than it should be")
        return there

    def _receive(self, descriptor: int, file: PullFile, offset: int, checksum: Checksum) -> int:
        """Append to the file what one connection brings; returns how much is there then."""
        source = self._hub.locate(self._wanted, self._commit, file.path)
        if source.size_bytes != file.size_bytes:
            raise PullError(
                "hub_error",
                f"the hub contradicts itself about {file.path} of {self._wanted.shown}; try again later",
            )
        there = offset
        with self._hub.open(self._wanted, source, offset) as response:
            if offset and not _goes_on_at(response, offset):
                raise _Restart
            for data in response.iter_bytes():
                self._raise_if_stopping()
                if there + len(data) > file.size_bytes:
                    self._throw_away(self._folder.partial(file.blob), there)
                    raise DamagedError(f"more than its {file.size_bytes} bytes came")
                _write(descriptor, data)
                checksum.update(data)
                there += len(data)
                self._told(len(data))
        return there

    def _throw_away(self, partial: Path, counted: int) -> None:
        partial.unlink(missing_ok=True)
        self._told(-counted)

    def _pause(self, wait_s: float) -> None:
        self._stopping.wait(wait_s)
        self._raise_if_stopping()

    def _raise_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopped


class _Restart(Exception):  # noqa: N818  # a turn of the way, not an error
    """Raised when the server does not go on where we are: it sends everything again."""


def _goes_on_at(response: httpx2.Response, offset: int) -> bool:
    """Whether the answer is the rest of the file from `offset` on."""
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return False
    return response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]

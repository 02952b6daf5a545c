"""One download, from the question what the repository holds to the snapshot that is whole."""

import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Final

import httpx2

from shared.pulling import (
    Phase,
    Pulled,
    PullEvent,
    PullFile,
    PullPlan,
    PullProgress,
    PullRecord,
    PullRequest,
    RepoName,
    is_commit,
    parse_repo,
)
from shared.sizes import format_size
from supervisor.pulling.cache import RepoFolder
from supervisor.pulling.choice import choose
from supervisor.pulling.errors import PassingError, PullError
from supervisor.pulling.hub import Hub, Listed, Repository
from supervisor.pulling.transfer import Stopped, Transfers

_AT_ONCE: Final = 4
"""Files that are downloaded at the same time."""
_TOLD_S: Final = 0.2
_RESERVE_BYTES: Final = 64 << 20
"""What a download leaves free on the disk."""

Report = Callable[[PullEvent], None]


def pull(request: PullRequest, report: Report, *, endpoint: str | None = None) -> Pulled:
    """Download what is asked for. Raises PullError; what was downloaded by then is kept."""
    hub = Hub(request.token, endpoint)
    try:
        return _pull(request, report, hub)
    except httpx2.TransportError as error:
        raise hub.unreachable(error) from error
    except PassingError as error:
        raise PullError("hub_error", str(error)) from error
    except OSError as error:
        raise _disk_error(error, request.repo) from error


def _pull(request: PullRequest, report: Report, hub: Hub) -> Pulled:
    try:
        asked = parse_repo(request.repo)
    except ValueError as error:
        raise PullError("bad_name", str(error)) from None
    report(PullProgress("asking"))
    found = hub.describe(RepoName(asked.repo, request.revision))
    try:
        wanted = RepoName(parse_repo(found.repo).repo, request.revision)
    except ValueError:
        raise PullError("hub_error", f"the hub calls {asked.repo} by a name that can't be") from None
    files = _files(hub, wanted, found, request)
    folder = RepoFolder(Path(request.cache), wanted.repo)
    folder.prepare()
    record = PullRecord(wanted.repo, request.revision, found.commit, tuple(files), request.include)
    contents = record.contents
    total = sum(file.size_bytes for file in contents)
    counter = _Counter(report, total)

    def another_has_it() -> None:
        # What it downloads is on the disk, and so is how far it has come.
        counter.there = folder.there_bytes(contents)
        counter.tell("waiting")
        threading.Event().wait(_TOLD_S)

    with folder.locked(another_has_it):
        counter.there = there = folder.there_bytes(contents)
        _check_space(folder, wanted, total - there)
        if there < total:
            folder.record(record)
        report(PullPlan(wanted.repo, request.revision, found.commit, len(files), total, there))
        transfers = Transfers(
            hub, wanted, found.commit, folder, counter.add, retry_wait_s=request.retry_wait_s
        )
        _fetch_all(transfers, contents, counter)
        ref = None if is_commit(request.revision) else request.revision
        snapshot = folder.finish(found.commit, files, ref)
    return Pulled(wanted.repo, found.commit, str(snapshot), total, counter.received)


class _Counter:
    """How many bytes are there; counted by the threads that fetch, told by the one that waits for them."""

    def __init__(self, report: Report, total_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._guard = threading.Lock()
        self.there = 0
        self.received = 0

    def add(self, change_bytes: int) -> None:
        """Called by the threads."""
        with self._guard:
            self.there += change_bytes
            self.received += max(0, change_bytes)

    def tell(self, phase: Phase) -> None:
        self._report(PullProgress(phase, self.there, self._total_bytes))


def _files(hub: Hub, wanted: RepoName, found: Repository, request: PullRequest) -> list[PullFile]:
    listed = {file.path: file for file in found.files}
    return [
        _file(hub, wanted, found.commit, listed[path])
        for path in choose(wanted.repo, listed, request.include)
    ]


def _file(hub: Hub, wanted: RepoName, commit: str, listed: Listed) -> PullFile:
    path = PurePosixPath(listed.path)
    if (
        path.is_absolute()
        or str(path) != listed.path
        or ".." in path.parts
        or not listed.path.isprintable()
        or "\\" in listed.path
    ):
        raise PullError("hub_error", f"{wanted.shown} has a file whose name can't be a file's here")
    blob, size_bytes = listed.blob, listed.size_bytes
    if blob is None or size_bytes is None or not blob.isalnum():
        source = hub.locate(wanted, commit, listed.path)
        blob, size_bytes = source.blob, source.size_bytes
    return PullFile(listed.path, blob, size_bytes)


def _check_space(folder: RepoFolder, wanted: RepoName, missing_bytes: int) -> None:
    free = folder.free_bytes()
    if missing_bytes + _RESERVE_BYTES > free and missing_bytes > 0:
        raise PullError(
            "no_space",
            f"{wanted.shown} needs {format_size(missing_bytes)} more, and {format_size(free)} are free on "
            "the disk of the Hugging Face cache; make room, or set HF_HUB_CACHE to a folder on another disk",
        )


def _fetch_all(transfers: Transfers, files: Sequence[PullFile], counter: _Counter) -> None:
    # Small files first: what is wrong with a repository often shows in them.
    order = sorted(files, key=lambda file: file.size_bytes)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="transfer") as threads:
        pending: set[Future[None]] = {threads.submit(transfers.fetch, file) for file in order}
        failed: list[BaseException] = []
        while pending and not failed:
            done, pending = wait(pending, timeout=_TOLD_S, return_when=FIRST_EXCEPTION)
            failed = [error for future in done if (error := future.exception()) is not None]
            counter.tell("downloading")
        if failed:
            transfers.stop()
            threads.shutdown(wait=True, cancel_futures=True)
            raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])


def _disk_error(error: OSError, repo: str) -> PullError:
    kept = "what is there already is kept; try again when that is mended"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return PullError("no_space", f"the disk is full ({error.strerror}) in the middle of {repo}; {kept}")
    where = f" ({error.filename})" if error.filename else ""
    return PullError("disk", f"{repo} can't be written: {error.strerror or error}{where}; {kept}")

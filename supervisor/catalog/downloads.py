"""The downloads of this program: one per repository, a few at a time, each watched and told of."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from shared.errors import PublicError
from shared.pulling import Pulled, PullEvent, PullPlan, PullProgress, PullRequest, RepoName
from supervisor.catalog.places import hub_cache
from supervisor.catalog.pull import PULLER, ModelPullError, pull_model
from supervisor.catalog.scan import Scanner
from supervisor.telemetry.events import Events, Field, Level

State = Literal["queued", "asking", "waiting", "downloading", "done", "failed", "cancelled"]
ENDED: Final = frozenset({"done", "failed", "cancelled"})

_AT_ONCE: Final = 3
_MOST_QUEUED: Final = 50
_KEPT: Final = 20
"""Downloads that have ended and are still shown."""
_RATE_S: Final = 5.0
"""Over how long the rate is measured."""
_TOLD_EVERY_S: Final = 10.0
"""How often an event tells how far a download is."""


class DownloadView(msgspec.Struct, frozen=True):
    """One download as `GET /downloads` shows it. Sizes are bytes."""

    repo: str
    revision: str
    state: State
    done_bytes: int
    total_bytes: int
    """0 until the hub has told."""
    rate_bytes_s: float | None
    eta_s: float | None
    there_bytes: int
    """How much of it was there when it began."""
    files: int
    include: tuple[str, ...]
    commit: str | None
    renamed_to: str | None
    """What the repository is called now, where that is another name."""
    fetched_bytes: int | None
    """How much was really downloaded, once it is done."""
    problem: str | None
    """Why it failed, or why what was downloaded can't be loaded."""
    code: str | None
    """The kind of failure, for programs."""


class DownloadViews(msgspec.Struct, frozen=True):
    """`GET /downloads`: those under way first, then the last that ended."""

    downloads: tuple[DownloadView, ...]


class Rate:
    """Bytes per second over the last seconds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, done_bytes: int) -> None:
        if self._readings and done_bytes < self._readings[-1][1]:
            self._readings.clear()  # something was thrown away: what came before is no measure
        self._readings.append((now_s, done_bytes))
        while self._readings[0][0] < now_s - _RATE_S:
            self._readings.popleft()

    @property
    def bytes_s(self) -> float | None:
        """None until there is something to tell."""
        if len(self._readings) < 2:
            return None
        (began_s, before), (now_s, after) = self._readings[0], self._readings[-1]
        return (after - before) / (now_s - began_s) if now_s > began_s else None


class Download:
    """One download; lives in the loop that began it."""

    def __init__(self, request: PullRequest) -> None:
        self.request = request
        self.state: State = "queued"
        self.task: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self._rate = Rate()
        self._progress = PullProgress("asking")
        self._plan: PullPlan | None = None
        self._pulled: Pulled | None = None
        self._problem: str | None = None
        self._code: str | None = None

    def hear(self, event: PullEvent, now_s: float) -> None:
        match event:
            case PullPlan():
                self._plan = event
                self._progress = PullProgress("downloading", event.there_bytes, event.total_bytes)
                self._rate.add(now_s, event.there_bytes)
            case PullProgress():
                self.state = event.phase
                self._progress = event
                self._rate.add(now_s, event.done_bytes)
            case _:
                return

    def finish(self, pulled: Pulled, problem: str | None) -> None:
        self.state, self._pulled, self._problem = "done", pulled, problem
        self._progress = PullProgress("downloading", pulled.total_bytes, pulled.total_bytes)

    def fail(self, code: str, problem: str) -> None:
        self.state, self._code, self._problem = "failed", code, problem

    @property
    def has_begun(self) -> bool:
        """Whether there is something of it on the disk."""
        return self._plan is not None

    def cancel(self) -> None:
        self.state = "cancelled"

    def view(self) -> DownloadView:
        plan, progress = self._plan, self._progress
        rate = self._rate.bytes_s if self.state in ("downloading", "waiting") else None
        missing = progress.total_bytes - progress.done_bytes
        return DownloadView(
            repo=self.request.repo,
            revision=self.request.revision,
            state=self.state,
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
            rate_bytes_s=rate,
            eta_s=missing / rate if rate else None,
            there_bytes=plan.there_bytes if plan else 0,
            files=plan.files if plan else 0,
            include=self.request.include,
            commit=plan.commit if plan else None,
            renamed_to=plan.repo if plan and plan.repo != self.request.repo else None,
            fetched_bytes=self._pulled.fetched_bytes if self._pulled else None,
            problem=self._problem,
            code=self._code,
        )


class Downloads:
    """All downloads. `refresh` is awaited after each that brought something."""

    def __init__(
        self,
        events: Events,
        *,
        refresh: Callable[[], Awaitable[None]],
        environ: Mapping[str, str] = os.environ,
        command: Sequence[str] = PULLER,
    ) -> None:
        self._events = events
        self._refresh = refresh
        self._environ = environ
        self._command = command
        self._running: dict[str, Download] = {}
        self._past: deque[Download] = deque(maxlen=_KEPT)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._closing = False

    def start(
        self, name: RepoName, *, include: Sequence[str] = (), token: str | None = None
    ) -> tuple[DownloadView, bool]:
        """Begin a download, or join the one that brings the same; tells which with True for a new one.

        Raises PublicError: another revision of the repository is coming, too many wait, or we are stopping.
        """
        if self._closing:
            raise PublicError(503, "stopping", "The supervisor is stopping.", retry_after_s=5)
        request = PullRequest(name.repo, str(hub_cache(self._environ)), name.revision, tuple(include), token)
        if (running := self._running.get(_key(name.repo))) is not None:
            if (running.request.revision, running.request.include) == (request.revision, request.include):
                return running.view(), False
            other = RepoName(running.request.repo, running.request.revision).shown
            files = " with other files" if running.request.include != request.include else ""
            raise PublicError(
                409,
                "download_running",
                f"{other}{files} is being downloaded; wait for it, or cancel it first.",
                param="repo",
            )
        if len(self._running) >= _MOST_QUEUED:
            raise PublicError(
                429,
                "queue_full",
                f"{_MOST_QUEUED} downloads wait already; try again later.",
                retry_after_s=60,
            )
        download = Download(request)
        self._running[_key(name.repo)] = download
        self._past = deque((past for past in self._past if _key(past.request.repo) != _key(name.repo)), _KEPT)
        download.task = asyncio.get_running_loop().create_task(self._run(download))
        download.task.add_done_callback(lambda _: self._end(download))
        return download.view(), True

    async def _run(self, download: Download) -> None:
        request = download.request
        told_s = began_s = time.monotonic()

        def hear(event: PullEvent) -> None:
            nonlocal told_s
            now_s = time.monotonic()
            download.hear(event, now_s)
            if isinstance(event, PullPlan):
                self._tell(
                    "planned",
                    request,
                    files=event.files,
                    total_bytes=event.total_bytes,
                    there_bytes=event.there_bytes,
                )
            elif isinstance(event, PullProgress) and event.total_bytes and now_s - told_s >= _TOLD_EVERY_S:
                told_s = now_s
                self._tell("progress", request, done_bytes=event.done_bytes, total_bytes=event.total_bytes)

        try:
            async with self._places:
                self._tell("started", request)
                pulled = await pull_model(request, hear, environ=self._environ, command=self._command)
            found = await asyncio.to_thread(Scanner().scan, Path(pulled.directory))
            await self._refresh()
        except ModelPullError as error:
            if download.has_begun:
                await self._refresh()  # half a model is shown as what it is
            download.fail(error.code, str(error))
            self._tell("failed", request, level="warning", code=error.code, reason=str(error))
        else:
            download.finish(pulled, found.problem)
            self._tell(
                "finished",
                request,
                total_bytes=pulled.total_bytes,
                fetched_bytes=pulled.fetched_bytes,
                took_s=time.monotonic() - began_s,
                problem=found.problem,
            )

    def _end(self, download: Download) -> None:
        """Called at the end of its task, also of one that was cancelled before it began."""
        if download.state not in ENDED:
            download.cancel()
            self._tell("cancelled", download.request)
        del self._running[_key(download.request.repo)]
        self._past.appendleft(download)
        download.ended.set()

    def _tell(self, verb: str, request: PullRequest, *, level: Level = "info", **fields: Field) -> None:
        self._events.emit(
            f"download.{verb}", level=level, repo=request.repo, revision=request.revision, **fields
        )

    def views(self) -> DownloadViews:
        """Everything there is to show."""
        return DownloadViews(tuple(item.view() for item in (*self._running.values(), *self._past)))

    def running(self) -> list[str]:
        """The repositories that are being downloaded, by both of their names."""
        views = [download.view() for download in self._running.values()]
        return [name for view in views for name in (view.repo, view.renamed_to) if name is not None]

    async def watch(self, repo: str, wait_s: float) -> DownloadView:
        """The download of `repo` as it is after `wait_s`, or at its end if that comes before.

        Raises PublicError, 404, when there was none.
        """
        download = self._find(repo)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(download.ended.wait(), wait_s)
        return download.view()

    async def cancel(self, repo: str) -> DownloadView:
        """End the download of `repo`; what it brought is kept. One that has ended is left as it is."""
        download = self._find(repo)
        if download.state not in ENDED:
            await self._cancel([download])
            if download.has_begun:
                await self._refresh()
        return download.view()

    async def close(self) -> None:
        """End them all. Afterwards none runs, and none begins."""
        self._closing = True
        await self._cancel(list(self._running.values()))

    async def _cancel(self, downloads: list[Download]) -> None:
        tasks = [download.task for download in downloads if download.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _find(self, repo: str) -> Download:
        if (running := self._running.get(_key(repo))) is not None:
            return running
        for download in self._past:
            if _key(download.request.repo) == _key(repo):
                return download
        raise PublicError(404, "download_not_found", "There is no download of this repository.", param="repo")


def _key(repo: str) -> str:
    # The hub takes either case for one repository.
    return repo.lower()

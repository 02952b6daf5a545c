"""Download a model from the hub."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn
from urllib.parse import quote

import typer

from shared.sizes import format_duration, format_size
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, supervisor_of
from supervisor.cli.terminal import clean, say_json_line
from supervisor.cli.terminal import say as write_line

if TYPE_CHECKING:
    from shared.pulling import RepoName
    from supervisor.catalog.downloads import DownloadView
    from supervisor.cli.client import Client

_INTERRUPTED: Final = 130
_GO_ON: Final = "what it brought is kept, and `mlx-supervisor pull` goes on from there"
_LOOK_S: Final = 0.5
"""How often it is told how far a download is."""
_ENDED: Final = ("done", "failed", "cancelled")
_TOKEN: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def pull(
    repo: Annotated[
        str,
        typer.Argument(metavar="REPO[@REVISION]", help="ORG/NAME on the hub, or the address of its page."),
    ],
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Only files that match; may be given again. Else all that MLX can use.",
            show_default=False,
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the download of REPO; what it brought is kept.")
    ] = False,
    home: HomeOption = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print lines of JSON, for programs: how far it is, at last its end."),
    ] = False,
) -> None:
    """Download a model from the Hugging Face hub; a broken download goes on where it stopped.

    \b
    Example:
      mlx-supervisor pull mlx-community/Qwen3-4B-4bit
    """
    from shared.pulling import parse_repo

    try:
        name = parse_repo(repo)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    try:
        client = supervisor_of(home)
        _pull_there(client, name, include or [], cancel=cancel, json=json)
    except NotRunningError:
        if cancel:
            raise
        _pull_here(name, include or [], json=json)


def _pull_there(client: "Client", name: "RepoName", include: list[str], *, cancel: bool, json: bool) -> None:
    """The running supervisor downloads, and we look on."""
    import msgspec

    from supervisor.catalog.downloads import DownloadView

    target = f"/api/downloads/{quote(name.repo, safe='/')}"

    def read(answer: object) -> DownloadView:
        return msgspec.convert(answer, DownloadView)

    if cancel:
        view = read(client.delete(target))
        if json:
            _say_view(view)
            return
        outcome = f"cancelled; {_GO_ON}" if view.state == "cancelled" else f"it is {view.state} already"
        say(f"{name.shown}: {outcome}")
        return
    before = {download["repo"] for download in client.get("/api/downloads")["downloads"] if _runs(download)}
    token = next((os.environ[variable] for variable in _TOKEN if os.environ.get(variable)), None)
    wanted = {"repo": name.repo, "revision": name.revision, "include": include, "token": token}
    view = read(client.post("/api/downloads", wanted, timeout_s=10))
    joined = view.repo in before
    try:
        if joined and not json:
            say(f"{name.shown} is being downloaded already; this is how far it is")
        follow = _tell if json else _follow
        follow(name, view, lambda: read(client.get(f"{target}?wait_s={_LOOK_S}")))
    except KeyboardInterrupt:
        if joined:
            _interrupted(
                f"{name.shown}: the download goes on; end it with: mlx-supervisor pull --cancel {name.repo}"
            )
        view = read(client.delete(target))
        if json:
            _say_view(view)
        _interrupted(_stopped(name))


def _runs(download: dict[str, object]) -> bool:
    return download["state"] not in _ENDED


def _pull_here(name: "RepoName", include: list[str], *, json: bool) -> None:
    """No supervisor runs: download by ourselves. Whatever the program brings, the next supervisor finds."""
    import asyncio

    from supervisor.catalog.downloads import Downloads
    from supervisor.telemetry.events import Events

    with asyncio.Runner() as runner:

        async def begin() -> "tuple[Downloads, DownloadView]":
            async def nothing_to_refresh() -> None:
                pass

            downloads = Downloads(Events(), refresh=nothing_to_refresh)
            return downloads, downloads.start(name, include=include)[0]

        downloads, view = runner.run(begin())
        try:
            follow = _tell if json else _follow
            follow(name, view, lambda: runner.run(downloads.watch(name.repo, _LOOK_S)))
        except KeyboardInterrupt:
            view = runner.run(downloads.cancel(name.repo))
            if json:
                _say_view(view)
            _interrupted(_stopped(name))
        finally:
            runner.run(downloads.close())


def _follow(name: "RepoName", view: "DownloadView", look: Callable[[], "DownloadView"]) -> None:
    """Show the download until it ends. Raises RefusedError if that is no success."""
    told = False
    try:
        while True:
            if view.renamed_to and not told:
                _show("")
                say(f"{view.repo} is called {view.renamed_to} now")
            if view.total_bytes and view.files and not told:
                told = True
                _show("")
                there = f", {format_size(view.there_bytes)} of it are there" if view.there_bytes else ""
                say(f"{name.shown}: {view.files} files, {format_size(view.total_bytes)}{there}")
            if view.state in _ENDED:
                break
            _show(progress_line(view))
            view = look()
    finally:
        _show("")
    _check(name, view)
    fetched = view.fetched_bytes or 0
    say(
        f"{view.renamed_to or view.repo} is whole: "
        + (f"{format_size(fetched)} downloaded" if fetched else "nothing was missing")
    )
    if view.problem:
        say(f"note: it can't be loaded: {view.problem}")


def _check(name: "RepoName", view: "DownloadView") -> None:
    """Raises RefusedError if its end is no success."""
    if view.state == "failed":
        raise RefusedError(view.problem or "the download failed")
    if view.state == "cancelled":
        raise RefusedError(f"{name.shown}: the download was cancelled; {_GO_ON}")


def _tell(name: "RepoName", view: "DownloadView", look: Callable[[], "DownloadView"]) -> None:
    """The same for a program: a line whenever something has changed."""
    told: DownloadView | None = None
    while True:
        if view != told:
            _say_view(view)
            told = view
        if view.state in _ENDED:
            break
        view = look()
    _check(name, view)


def _say_view(view: "DownloadView") -> None:
    import msgspec

    say_json_line(msgspec.to_builtins(view))


def progress_line(view: "DownloadView") -> str:
    """How far it is, in one line."""
    if view.state == "queued":
        return "waiting for other downloads"
    if not view.total_bytes:
        return "asking the hub"
    words = [
        f"{format_size(view.done_bytes)} of {format_size(view.total_bytes)}",
        f"{100 * view.done_bytes // view.total_bytes} %",
    ]
    if view.rate_bytes_s is not None:
        words.append(f"{format_size(int(view.rate_bytes_s))}/s")
    if view.eta_s is not None and view.eta_s < 100 * 3600:
        words.append(f"{format_duration(view.eta_s)} left")
    if view.state == "waiting":
        words.append("(another program downloads it)")
    return "  ".join(words)


def _stopped(name: "RepoName") -> str:
    return f"{name.shown}: stopped; {_GO_ON}"


def _interrupted(sentence: str) -> NoReturn:
    _show("")
    sys.stderr.write(f"{clean(sentence)}\n")
    raise typer.Exit(_INTERRUPTED)


def say(text: str) -> None:
    """Say it at once: whoever reads a pipe wants to know while the download runs."""
    write_line(text)
    sys.stdout.flush()


def _show(text: str) -> None:
    """Draw the line over itself on a terminal; a pipe gets nothing."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{clean(text)}")
        sys.stderr.flush()

"""Which downloads run, who joins which, and what is told of them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.errors import PublicError
from shared.pulling import RepoName, parse_repo
from supervisor.catalog.downloads import Downloads, DownloadView, Rate
from supervisor.telemetry.events import Event, Events
from tests.fixtures.models import write_fake_model
from tests.fixtures.puller import puller

MODEL = parse_repo("org/model")


class Here:
    """Downloads by a scripted program, what they emitted, and how often the catalog was refreshed."""

    def __init__(self, tmp_path: Path, text: str) -> None:
        self.events: list[Event] = []
        self.refreshed = 0
        events = Events()
        events.subscribe(self.events.append)
        environ = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_TOKEN": "hf_secret"}
        self.downloads = Downloads(
            events, refresh=self._refresh, environ=environ, command=puller(tmp_path, text)
        )

    async def _refresh(self) -> None:
        self.refreshed += 1

    async def until(self, state: str, repo: str = "org/model") -> DownloadView:
        async with asyncio.timeout(20):
            while True:
                view = await self.downloads.watch(repo, 0.02)
                if view.state == state:
                    return view

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def own_children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_a_download_from_beginning_to_end(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "model")
    go = tmp_path / "go"
    here = Here(tmp_path, f"plan(there=100); progress(400); wait_for({str(go)!r}); pulled({str(folder)!r})")
    view, new = here.downloads.start(MODEL)
    assert new and view.state == "queued"
    assert (await here.until("downloading")).done_bytes >= 100
    while (view := await here.downloads.watch("org/model", 0.02)).done_bytes < 400:
        pass
    assert (view.total_bytes, view.files, view.commit) == (1000, 3, "c" * 40)
    assert view.rate_bytes_s and view.eta_s
    go.touch()
    view = await here.until("done")
    assert (view.done_bytes, view.fetched_bytes, view.problem) == (1000, 1000, None)
    assert view.rate_bytes_s is None
    assert here.refreshed == 1
    assert here.kinds == ["download.started", "download.planned", "download.finished"]
    assert here.downloads.views().downloads == (view,)
    assert here.downloads.running() == []


async def test_a_second_one_joins_the_first(tmp_path: Path) -> None:
    here = Here(tmp_path, "plan(); progress(400); wait_for_the_end()")
    here.downloads.start(MODEL)
    await here.until("downloading")
    view, new = here.downloads.start(parse_repo("Org/Model"))
    assert not new and view.state == "downloading"
    assert len(own_children()) == 1
    for other in (RepoName("org/model", "v1"), MODEL):
        with pytest.raises(PublicError) as caught:
            here.downloads.start(other, include=("*.json",))
        assert (caught.value.status, caught.value.code) == (409, "download_running")
    await here.downloads.close()
    assert not own_children()


async def test_cancelled_and_begun_again(tmp_path: Path) -> None:
    here = Here(tmp_path, "plan(); progress(400); wait_for_the_end()")
    here.downloads.start(MODEL)
    await here.until("downloading")
    view = await here.downloads.cancel("org/model")
    assert (view.state, view.done_bytes) == ("cancelled", 400)
    assert not own_children()
    assert here.kinds[-1] == "download.cancelled"
    assert here.refreshed == 1
    # Once more is no news, and then it can be begun anew; the list has each repository once.
    assert (await here.downloads.cancel("org/model")).state == "cancelled"
    assert here.downloads.start(MODEL)[1]
    assert len(here.downloads.views().downloads) == 1
    await here.downloads.close()
    with pytest.raises(PublicError, match="stopping"):
        here.downloads.start(MODEL)


async def test_a_cancelled_one_in_the_queue_never_starts(tmp_path: Path) -> None:
    here = Here(tmp_path, "plan(); wait_for_the_end()")
    for number in range(4):
        here.downloads.start(RepoName(f"org/m{number}"))
    async with asyncio.timeout(20):
        while here.kinds.count("download.planned") < 3:
            await here.downloads.watch("org/m3", 0.02)
    assert (await here.downloads.watch("org/m3", 0)).state == "queued"
    assert len(own_children()) == 3
    assert (await here.downloads.cancel("org/m3")).state == "cancelled"
    for number in range(4, 51):
        here.downloads.start(RepoName(f"org/m{number}"))
    with pytest.raises(PublicError) as caught:
        here.downloads.start(RepoName("org/last"))
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    await here.downloads.close()
    assert not own_children()
    # Only the last ones are remembered.
    assert len(here.downloads.views().downloads) == 20


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("tell('failed', code='gated', message='it is gated'); sys.exit(1)", "gated", "it is gated"),
        ("sys.exit('no module')", "ended", "the download ended with status 1. It said: no module"),
        ("os.kill(os.getpid(), 9)", "ended", "ended by signal 9"),
        ("print('what?', flush=True)", "ended", "can't be understood"),
        ("pulled(); sys.exit(3)", "ended", "ended with status 3"),
    ],
)
async def test_failures_are_told_with_their_reason(
    tmp_path: Path, text: str, code: str, problem: str
) -> None:
    here = Here(tmp_path, text)
    here.downloads.start(MODEL)
    view = await here.until("failed")
    assert view.code == code
    assert view.problem is not None and problem in view.problem
    assert here.events[-1].kind == "download.failed"
    assert here.events[-1].level == "warning"
    assert here.refreshed == 0
    assert not own_children()


async def test_what_can_t_be_loaded_is_said_though_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    here = Here(tmp_path, f"plan(); pulled({str(tmp_path / 'empty')!r})")
    here.downloads.start(MODEL)
    view = await here.until("done")
    assert view.problem == "it has no config.json, so it is no model in MLX format"


async def test_a_renamed_repository_is_found_by_both_names(tmp_path: Path) -> None:
    here = Here(tmp_path, "plan(repo='new/name'); progress(1); wait_for_the_end()")
    here.downloads.start(MODEL)
    assert (await here.until("downloading")).renamed_to == "new/name"
    assert here.downloads.running() == ["org/model", "new/name"]
    await here.downloads.close()


async def test_the_token_is_for_the_program_alone(tmp_path: Path) -> None:
    here = Here(
        tmp_path, "sys.exit('token ' + str(len(request['token'])) + ' ' + os.environ['HF_TOKEN'][:2])"
    )
    here.downloads.start(MODEL, token="hf_other")
    view = await here.until("failed")
    assert view.problem is not None and "It said: token 8 hf" in view.problem
    shown: Any = (view, here.events, here.downloads.views())
    assert "hf_other" not in repr(shown)


async def test_nobody_downloads_that(tmp_path: Path) -> None:
    here = Here(tmp_path, "")
    for ask in (here.downloads.watch("org/none", 0), here.downloads.cancel("org/none")):
        with pytest.raises(PublicError) as caught:
            await ask
        assert caught.value.status == 404


def test_the_rate_is_of_the_last_seconds() -> None:
    assert Rate().bytes_s is None
    rate = Rate()
    for second in range(20):
        rate.add(second, 1000 * second if second < 10 else 9000 + 10 * (second - 9))
    assert rate.bytes_s == 10
    # Something was thrown away: what came before is no measure any more.
    rate.add(20, 0)
    rate.add(21, 500)
    assert rate.bytes_s == 500

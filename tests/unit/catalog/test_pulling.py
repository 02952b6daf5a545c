"""Downloads with the hub's real client from a hub on loopback.

Most run in this process: starting one takes longer than the download.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from shared.pulling import Pulled, PullEvent, PullPlan, PullProgress, PullRequest, parse_repo
from supervisor.catalog.pull import PULLER, ModelPullError, pull_environment, pull_model
from supervisor.catalog.scan import Scanner
from supervisor.pulling import transfer
from supervisor.pulling.errors import PullError
from supervisor.pulling.pull import pull
from tests.fixtures.hub import GOOD_TOKEN, FakeHub, Gate, Repo, model_files, sha256

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub's client as in a new process with no settings and no login."""
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    close_session()
    yield
    close_session()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub({"org/model": Repo(model_files())}) as hub:
        yield hub


class Pull:
    """One run of the program. `revision`, `include` and so on are the request's."""

    def __init__(self, hub: FakeHub, cache: Path, repo: str = "org/model", **wanted: object) -> None:
        fields = {"repo": repo, "cache": str(cache), "retry_wait_s": 0.01, **wanted}
        self.request = PullRequest(**fields)  # type: ignore[arg-type]  # each test knows its fields
        self.endpoint = hub.url
        self.environ = {**os.environ, **hub.environ(str(cache))}
        self.events: list[PullEvent] = []

    async def run(self) -> Pulled:
        return await asyncio.to_thread(pull, self.request, self.events.append, endpoint=self.endpoint)

    async def run_program(self, command: tuple[str, ...] = PULLER) -> Pulled:
        return await pull_model(self.request, self.events.append, environ=self.environ, command=command)

    async def fail(self, code: str) -> str:
        """The sentence of a download that fails with this code."""
        with pytest.raises(PullError) as caught:
            await self.run()
        assert caught.value.code == code, str(caught.value)
        assert "\n" not in str(caught.value)
        assert "Traceback" not in str(caught.value)
        return str(caught.value)

    @property
    def plan(self) -> PullPlan:
        return next(event for event in self.events if isinstance(event, PullPlan))


def hub_snapshot(cache: Path, repo: str) -> Path | None:
    """What the hub's tools take for the model: the snapshot that `main` is at."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    branch = folder / "refs" / "main"
    return folder / "snapshots" / branch.read_text() if branch.exists() else None


def snapshot(cache: Path, repo: str = "org/model") -> Path:
    folder = hub_snapshot(cache, repo)
    assert folder is not None
    return folder


def is_whole(cache: Path, files: dict[str, bytes]) -> bool:
    folder = hub_snapshot(cache, "org/model")
    return folder is not None and all((folder / path).read_bytes() == files[path] for path in files)


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another process or thread does and announces to nobody."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def left_overs(cache: Path) -> list[str]:
    return sorted(
        path.name
        for path in cache.rglob("*")
        if path.name.endswith(".incomplete") or path.name.startswith(".mlx")
    )


async def test_a_model_arrives_whole_in_the_cache_that_all_tools_share(hub: FakeHub, cache: Path) -> None:
    pull = Pull(hub, cache)
    pulled = await pull.run_program()
    files = hub.repos["org/model"].files
    assert is_whole(cache, files)
    assert Scanner().scan(Path(pulled.directory)).problem is None
    assert Path(pulled.directory) == snapshot(cache)
    assert pull.plan.files == 5
    assert pulled.total_bytes == pulled.fetched_bytes == sum(map(len, files.values()))
    progress = [event for event in pull.events if isinstance(event, PullProgress)]
    assert progress[-1] == PullProgress("downloading", pulled.total_bytes, pulled.total_bytes)
    assert left_overs(cache) == []
    # The blob has the name that the hub's own tools give it, so they find it too.
    assert (snapshot(cache) / WEIGHTS).resolve().name == sha256(files[WEIGHTS])
    # The second time nothing is fetched, and everything is checked against what the hub lists.
    hub.seen.clear()
    assert (await Pull(hub, cache).run()).fetched_bytes == 0
    assert [seen.path for seen in hub.seen] == ["/api/models/org/model/revision/main"]


async def test_the_hub_s_own_client_finds_it(hub: FakeHub, cache: Path) -> None:
    pulled = await Pull(hub, cache).run()
    program = (
        "from huggingface_hub import snapshot_download as get; print(get('org/model', local_files_only=True))"
    )
    pull = Pull(hub, cache)
    process = await asyncio.create_subprocess_exec(
        PULLER[0], "-c", program, stdout=asyncio.subprocess.PIPE, env=pull.environ
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == pulled.directory


async def test_a_connection_cut_half_way_is_taken_up_where_it_broke(hub: FakeHub, cache: Path) -> None:
    hub.cuts[WEIGHTS] = [100_000, 50_000]
    pulled = await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)
    assert [seen.range for seen in hub.fetched(WEIGHTS)] == [None, "bytes=100000-", "bytes=150000-"]
    assert pulled.fetched_bytes == pulled.total_bytes


async def test_a_killed_download_goes_on_and_was_never_taken_for_a_model(hub: FakeHub, cache: Path) -> None:
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    first = Pull(hub, cache)
    task = asyncio.ensure_future(first.run_program())
    assert await asyncio.to_thread(gate.reached.wait, 20)
    partial = (
        cache / "models--org--model" / "blobs" / f"{sha256(hub.repos['org/model'].files[WEIGHTS])}.incomplete"
    )
    await wait_until(lambda: partial.exists() and partial.stat().st_size >= 120_000)
    assert hub_snapshot(cache, "org/model") is None
    record = json.loads((cache / "models--org--model" / ".mlx-supervisor.json").read_bytes())
    assert record["repo"] == "org/model"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.opened.set()
    del hub.gates[WEIGHTS]
    hub.seen.clear()
    second = Pull(hub, cache)
    pulled = await second.run()
    assert is_whole(cache, hub.repos["org/model"].files)
    assert second.plan.there_bytes >= 120_000
    assert pulled.fetched_bytes == pulled.total_bytes - second.plan.there_bytes
    assert [seen.range for seen in hub.fetched(WEIGHTS)] == ["bytes=120000-"]
    assert left_overs(cache) == []


async def test_a_server_that_ignores_ranges_sends_it_all_again(hub: FakeHub, cache: Path) -> None:
    hub.cuts[WEIGHTS] = [100_000]
    hub.ignores_ranges = True
    pull = Pull(hub, cache)
    pulled = await pull.run()
    assert is_whole(cache, hub.repos["org/model"].files)
    last = [event for event in pull.events if isinstance(event, PullProgress)][-1]
    assert last.done_bytes == pulled.total_bytes


async def test_a_wrong_byte_is_noticed_and_fetched_anew(hub: FakeHub, cache: Path) -> None:
    hub.corrupt = {WEIGHTS: 1, "config.json": 1}
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)
    assert len(hub.fetched(WEIGHTS)) == len(hub.fetched("config.json")) == 2


def partial(cache: Path, hub: FakeHub) -> Path:
    """What has come of the weights of org/model."""
    name = sha256(hub.repos["org/model"].files[WEIGHTS])
    return cache / "models--org--model" / "blobs" / f"{name}.incomplete"


async def test_what_stays_damaged_is_thrown_away_and_told(hub: FakeHub, cache: Path) -> None:
    hub.corrupt = {WEIGHTS: 9}
    assert "model.safetensors of org/model arrived damaged twice" in await Pull(hub, cache).fail("damaged")
    assert hub_snapshot(cache, "org/model") is None
    # What another file had received by then is kept.
    assert not partial(cache, hub).exists()


async def test_a_beginning_that_somebody_broke_is_noticed(hub: FakeHub, cache: Path) -> None:
    blobs = cache / "models--org--model" / "blobs"
    blobs.mkdir(parents=True)
    content = hub.repos["org/model"].files[WEIGHTS]
    (blobs / f"{sha256(content)}.incomplete").write_bytes(bytes(1000))
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)
    (blobs / sha256(content)).unlink()
    (blobs / f"{sha256(content)}.incomplete").write_bytes(bytes(len(content) + 1))
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)


async def test_a_hub_that_is_busy_for_a_moment_is_asked_again(hub: FakeHub, cache: Path) -> None:
    hub.statuses[WEIGHTS] = [503, 429, 500]
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)
    hub.repos["org/other"] = Repo(model_files(seed=2))
    hub.statuses[WEIGHTS] = [503] * 9
    assert "answered with status 503; try again later" in await Pull(hub, cache, "org/other").fail(
        "hub_error"
    )


async def test_an_update_leaves_the_old_revision_whole_until_the_new_one_is(
    hub: FakeHub, cache: Path
) -> None:
    await Pull(hub, cache).run()
    old = snapshot(cache)
    repo = hub.repos["org/model"]
    repo.files = model_files(seed=2)
    hub.corrupt = {WEIGHTS: 9}
    await Pull(hub, cache).fail("damaged")
    assert snapshot(cache) == old
    hub.corrupt.clear()
    pulled = await Pull(hub, cache).run()
    assert snapshot(cache) != old
    assert is_whole(cache, repo.files)
    # What both revisions have is fetched once.
    assert pulled.fetched_bytes < pulled.total_bytes
    assert (old / WEIGHTS).read_bytes() == model_files()[WEIGHTS]


async def test_revisions_and_patterns(hub: FakeHub, cache: Path) -> None:
    repo = hub.repos["org/model"]
    repo.revisions["v1"] = model_files(seed=3)
    pulled = await Pull(hub, cache, revision="v1").run()
    assert hub_snapshot(cache, "org/model") is None
    assert (cache / "models--org--model/refs/v1").read_text() == pulled.commit
    by_commit = await Pull(hub, cache, revision=pulled.commit).run()
    assert by_commit.directory == pulled.directory
    assert sorted(path.name for path in (cache / "models--org--model/refs").iterdir()) == ["v1"]
    pull = Pull(hub, cache, include=("*.json",))
    await pull.run()
    assert sorted(path.name for path in snapshot(cache).iterdir()) == ["config.json", "tokenizer.json"]
    # Half a repository, as it was asked for, is no whole model.
    assert Scanner().scan(snapshot(cache)).problem == "it has no weights (model*.safetensors)"
    sentence = await Pull(hub, cache, include=("*.gguf",)).fail("no_files")
    assert "no file of org/model matches *.gguf; it has .gitattributes, README.md" in sentence
    assert "has no revision 'v9'" in await Pull(hub, cache, revision="v9").fail("no_revision")


async def test_only_what_mlx_can_use_is_fetched(hub: FakeHub, cache: Path) -> None:
    repo = hub.repos["org/model"]
    useless = {
        "pytorch_model.bin": b"x",
        "original/consolidated.00.pth": b"x",
        "onnx/model.onnx": b"x",
        "picture.png": b"x",
    }
    repo.files |= useless | {"1_Pooling/config.json": b"{}", "tokenizer.model": b"x"}
    await Pull(hub, cache).run()
    there = {str(path.relative_to(snapshot(cache))) for path in snapshot(cache).rglob("*") if path.is_file()}
    assert there == set(repo.files) - set(useless)
    hub.repos["org/gguf"] = Repo({"model-Q8_0.gguf": b"x", "README.md": b"x"})
    assert "--include '*Q8_0.gguf'" in await Pull(hub, cache, "org/gguf").fail("no_files")
    hub.repos["org/torch"] = Repo({"pytorch_model.bin": b"x"})
    assert "only PyTorch files" in await Pull(hub, cache, "org/torch").fail("no_files")
    hub.repos["org/empty"] = Repo({})
    assert "it has no files at all" in await Pull(hub, cache, "org/empty").fail("no_files")


async def test_a_login_goes_to_the_hub_and_not_to_the_store(hub: FakeHub, cache: Path) -> None:
    hub.repos["org/model"].access = "gated"
    await Pull(hub, cache, token=GOOD_TOKEN).run()
    assert {seen.authorization for seen in hub.seen if seen.server == "store"} == {None}
    assert {seen.authorization for seen in hub.seen if seen.server == "hub"} == {f"Bearer {GOOD_TOKEN}"}


@pytest.mark.parametrize(
    ("access", "token", "code", "expected"),
    [
        ("gated", None, "gated", "is gated: accept its conditions at http"),
        ("gated", "hf_other", "gated", "your login is not among those who may; ask for access at"),
        ("private", None, "not_found", "or it is private and you are not logged in"),
        ("private", "hf_wrong", "forbidden", "the hub refuses the login"),
        ("disabled", None, "forbidden", "was disabled by the hub"),
        ("forbidden", None, "forbidden", "the hub refuses org/model to you"),
    ],
)
async def test_what_one_may_not_have_is_explained(
    hub: FakeHub, cache: Path, access: str, token: str | None, code: str, expected: str
) -> None:
    hub.repos["org/model"].access = access  # type: ignore[assignment]  # parametrised
    sentence = await Pull(hub, cache, token=token).fail(code)
    assert expected in sentence
    assert token is None or token not in sentence


async def test_missing_and_renamed(hub: FakeHub, cache: Path) -> None:
    assert "org/none does not exist" in await Pull(hub, cache, "org/none").fail("not_found")
    sentence = await Pull(hub, cache, "org/none", token=GOOD_TOKEN).fail("not_found")
    assert "it is private and your login may not see it" in sentence
    hub.repos["old/name"] = Repo({}, renamed_to="org/model")
    pull = Pull(hub, cache, "old/name")
    pulled = await pull.run()
    assert pull.plan.repo == pulled.repo == "org/model"
    assert is_whole(cache, hub.repos["org/model"].files)


async def test_no_network(hub: FakeHub, cache: Path) -> None:
    pull = Pull(hub, cache)
    pull.endpoint = "http://127.0.0.1:9"
    assert "the hub at http://127.0.0.1:9 can't be reached" in await pull.fail("unreachable")
    pull.endpoint = hub.store_url.replace("http", "https")
    await pull.fail("unreachable")
    pull = Pull(hub, cache)
    pull.environ["HF_HUB_OFFLINE"] = "1"
    with pytest.raises(ModelPullError, match="HF_HUB_OFFLINE is set"):
        await pull.run_program()
    # It goes away in the middle.
    hub.cuts[WEIGHTS] = [100_000] + [0] * 20
    assert "what is there already is kept" in await Pull(hub, cache).fail("unreachable")
    hub.cuts.clear()
    hub.seen.clear()
    await Pull(hub, cache).run()
    assert [seen.range for seen in hub.fetched(WEIGHTS)] == ["bytes=100000-"]


async def test_something_else_than_a_hub(hub: FakeHub, cache: Path) -> None:
    pull = Pull(hub, cache)
    pull.endpoint = f"{hub.url}/elsewhere"
    await pull.fail("hub_error")


async def test_a_model_that_can_t_fit_on_the_disk_is_refused_before_a_byte(hub: FakeHub, cache: Path) -> None:
    hub.repos["org/model"].sizes[WEIGHTS] = 2**60
    sentence = await Pull(hub, cache).fail("no_space")
    assert "org/model needs 1048576.0 TiB more, and" in sentence
    assert not hub.fetched(WEIGHTS)


async def test_a_disk_that_fills_up_in_the_middle_keeps_what_fitted(hub: FakeHub, cache: Path) -> None:
    """The limit on a file's size stands in for the full disk: the write itself is refused."""
    limited = ("/bin/sh", "-c", 'ulimit -f 128; exec "$@"', "sh", *PULLER)
    with pytest.raises(ModelPullError, match="the disk is full") as caught:
        await Pull(hub, cache).run_program(limited)
    assert caught.value.code == "no_space"
    fitted = partial(cache, hub).stat().st_size
    assert 0 < fitted <= 128 * 1024
    assert hub_snapshot(cache, "org/model") is None
    pull = Pull(hub, cache)
    await pull.run()
    assert pull.plan.there_bytes >= fitted
    assert is_whole(cache, hub.repos["org/model"].files)


async def test_a_cache_that_can_t_be_written(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can't be written" in await Pull(hub, tmp_path / "file" / "cache").fail("disk")


async def test_two_downloads_of_one_repository_are_one(hub: FakeHub, cache: Path) -> None:
    """The second waits, tells how far the first is, and has nothing left to do."""
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    first, second = Pull(hub, cache), Pull(hub, cache)
    running = asyncio.ensure_future(first.run_program())
    assert await asyncio.to_thread(gate.reached.wait, 20)
    joined = asyncio.ensure_future(second.run())
    await wait_until(
        lambda: any(
            isinstance(event, PullProgress) and event.done_bytes >= 120_000 for event in second.events
        )
    )
    assert all(
        event.phase in ("asking", "waiting") for event in second.events if isinstance(event, PullProgress)
    )
    gate.opened.set()
    await running
    assert (await joined).fetched_bytes == 0
    assert len(hub.fetched(WEIGHTS)) == 1


async def test_who_goes_on_when_the_first_is_killed(hub: FakeHub, cache: Path) -> None:
    gate = hub.gates[WEIGHTS] = Gate(120_000)
    running = asyncio.ensure_future(Pull(hub, cache).run_program())
    assert await asyncio.to_thread(gate.reached.wait, 20)
    second = Pull(hub, cache)
    joined = asyncio.ensure_future(second.run())
    await wait_until(
        lambda: any(isinstance(event, PullProgress) and event.phase == "waiting" for event in second.events)
    )
    del hub.gates[WEIGHTS]
    running.cancel()
    await asyncio.wait({running})
    await joined
    assert is_whole(cache, hub.repos["org/model"].files)
    gate.opened.set()


@pytest.mark.parametrize("disabled", [False, True])
async def test_files_that_can_also_be_had_by_xet_arrive_either_way(
    hub: FakeHub, cache: Path, disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, because there a file goes on where it broke off."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", disabled)
    hub.xet = True
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)


async def test_a_file_too_large_for_http_is_left_to_the_client(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes Xet for it; here it takes HTTP, all the rest is the same."""
    monkeypatch.setattr(transfer, "LARGEST_OVER_HTTP", 100_000)
    pull = Pull(hub, cache)
    pulled = await pull.run()
    assert is_whole(cache, hub.repos["org/model"].files)
    assert pulled.fetched_bytes == pulled.total_bytes
    last = [event for event in pull.events if isinstance(event, PullProgress)][-1]
    assert last.done_bytes == pulled.total_bytes
    hub.repos["org/model"].files = model_files(seed=5)
    hub.corrupt = {WEIGHTS: 9}
    assert "arrived damaged and was thrown away" in await Pull(hub, cache).fail("damaged")
    hub.corrupt.clear()
    await Pull(hub, cache).run()
    assert is_whole(cache, hub.repos["org/model"].files)


async def test_a_repository_can_t_write_outside_its_folder(hub: FakeHub, cache: Path) -> None:
    for path in ("../evil", "/evil", "a/../../evil", "a\\..\\evil", "bad\nname"):
        hub.repos["org/evil"] = Repo({**model_files(), path: b"x"})
        assert "can't be a file's here" in await Pull(hub, cache, "org/evil").fail("hub_error")
    assert not list(cache.parent.rglob("evil"))


def test_the_program_gets_the_client_s_variables_and_no_other_secrets() -> None:
    environ = {
        "PATH": "/bin",
        "HF_TOKEN": "hf_x",
        "https_proxy": "http://proxy",
        "OPENAI_API_KEY": "y",
        "MLX_SUPERVISOR_KEY": "z",
    }
    assert set(pull_environment(environ)) >= {"PATH", "HF_TOKEN", "https_proxy"}
    assert not {"OPENAI_API_KEY", "MLX_SUPERVISOR_KEY"} & set(pull_environment(environ))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("org/model", "org/model"),
        ("org/model@v1.0", "org/model@v1.0"),
        ("org/model@refs/pr/1", "org/model@refs/pr/1"),
        ("https://huggingface.co/org/model", "org/model"),
        ("https://huggingface.co/org/model/tree/v2", "org/model@v2"),
        ("hf.co/org/model/", "org/model"),
        ("org/model@main", "org/model"),
    ],
)
def test_names_as_people_write_them(text: str, shown: str) -> None:
    assert parse_repo(text).shown == shown


@pytest.mark.parametrize(
    "text",
    (
        *(
            "",
            "model",
            "org/",
            "/model",
            "a/b/c",
            "../x",
            "org/../x",
            "org/mo del",
            "org/a--b",
            "é/x",
            "-x/y",
        ),
        *("org/model@", "org/model@../x", "org/model@a b", "org/model@/x", "org/" + "x" * 97, "org/\x1b[31m"),
    ),
)
def test_nonsense_is_refused_without_asking_anybody(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_repo(text)
    assert str(caught.value).isprintable()

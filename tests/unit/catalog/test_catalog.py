"""Which models the catalog knows, and which name gets which."""

from pathlib import Path

import pytest

from shared.errors import PublicError
from shared.launch import Sampling
from supervisor.catalog.catalog import Catalog
from supervisor.catalog.places import hub_cache
from supervisor.home import Home
from supervisor.settings import ModelSettings, ServerSettings, Settings
from tests.fixtures.models import write_fake_model


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home")


def settings(fallback: str = "", **models: ModelSettings) -> Settings:
    named = {name.replace("__", "/").replace("_", "-"): model for name, model in models.items()}
    return Settings(server=ServerSettings(fallback_model=fallback), models=named)


def refusal(catalog: Catalog, name: str) -> PublicError:
    with pytest.raises(PublicError) as caught:
        catalog.resolve(name)
    error = caught.value
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert error.body()
    return error


def test_our_own_folder_is_listed(home: Home) -> None:
    for name in (
        "zebra",
        "ant",
        "org/model-a",
        "org/model-b",
        "broken",
        "half/.importing-x-1",
        ".importing-y-2",
    ):
        (home.models / name).mkdir(parents=True)
    for name in ("zebra", "ant", "org/model-a"):
        write_fake_model(home.models / name)
    (home.models / "notes.txt").write_text("not a model")
    entries = Catalog(home, Settings()).entries()
    assert [entry.id for entry in entries] == ["ant", "broken", "org/model-a", "org/model-b", "zebra"]
    assert [entry.problem is None for entry in entries] == [True, False, True, False, True]
    assert entries[0].directory == home.models / "ant"
    assert (entries[0].architecture, entries[0].context, entries[0].weights_bytes) == ("llama", 4096, 4)


def test_an_empty_catalog_says_how_to_get_a_model(home: Home) -> None:
    catalog = Catalog(home, Settings())
    assert catalog.entries() == []
    assert "mlx-supervisor pull" in refusal(catalog, "any").message


def test_refresh_sees_what_came_and_went(home: Home) -> None:
    catalog = Catalog(home, Settings())
    write_fake_model(home.models / "a")
    refusal(catalog, "a")
    catalog.refresh()
    assert catalog.resolve("a").id == "a"
    (home.models / "a").rename(home.models / "b")
    catalog.refresh()
    refusal(catalog, "a")
    assert catalog.resolve("b").directory == home.models / "b"


def test_settings_name_models_elsewhere(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_fake_model(tmp_path / "mine" / "tilde")
    write_fake_model(tmp_path / "absolute")
    write_fake_model(home.path / "beside")
    write_fake_model(home.models / "own")
    catalog = Catalog(
        home,
        settings(
            by_tilde=ModelSettings(source="~/mine/tilde"),
            by_path=ModelSettings(source=str(tmp_path / "absolute")),
            by_dot=ModelSettings(source="./beside"),
            by_id=ModelSettings(source="own"),
            by_nothing=ModelSettings(),
            no_folder=ModelSettings(source="/nowhere/at/all"),
            neither=ModelSettings(source="what is this"),
        ),
    )
    problems = {entry.id: entry.problem for entry in catalog.entries()}
    assert [name for name, problem in problems.items() if problem is None] == [
        "by-dot",
        "by-id",
        "by-path",
        "by-tilde",
    ]
    assert catalog.resolve("by-tilde").directory == tmp_path / "mine" / "tilde"
    assert catalog.resolve("by-id").directory == catalog.resolve("own").directory
    assert "no model of this id was imported" in str(problems["by-nothing"])
    assert problems["no-folder"] == "its folder does not exist"
    assert "no model that was found and no hub id" in str(problems["neither"])


def cached(cache: Path, hub_id: str, commit: str) -> Path:
    """A model as the Hugging Face cache keeps it: the snapshot's files are links to blobs."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    blobs = write_fake_model(repository / "blobs")
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    return snapshot


def test_models_in_the_hugging_face_cache(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = cached(tmp_path / "hub", "mlx-community/Tiny-4bit", "0123456789abcdef")
    broken = cached(tmp_path / "hub", "mlx-community/Half", "fedcba9876543210")
    (broken.parents[1] / "blobs" / "model.safetensors").unlink()
    escaping = cached(tmp_path / "hub", "evil/ref", "0123456789abcdef")
    (escaping.parents[1] / "refs" / "main").write_text("../../../outside")
    catalog = Catalog(
        home,
        settings(
            tiny=ModelSettings(source="mlx-community/Tiny-4bit"),
            mlx_community__Tiny_4bit=ModelSettings(),
            half=ModelSettings(source="mlx-community/Half"),
            absent=ModelSettings(source="mlx-community/Absent"),
            evil=ModelSettings(source="evil/ref"),
        ),
    )
    assert catalog.resolve("tiny").directory == snapshot
    assert catalog.resolve("tiny").problem is None
    assert catalog.resolve("mlx-community/Tiny-4bit").directory == snapshot
    assert "it has no weights" in str(catalog.resolve("half").problem)
    assert "mlx-supervisor pull mlx-community/Absent" in str(catalog.resolve("absent").problem)
    assert "mlx-supervisor pull evil/ref" in str(catalog.resolve("evil").problem)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_is_where_the_variables_say(environ: dict[str, str], folder: str) -> None:
    assert str(hub_cache(environ)) == folder


def test_aliases_and_ids(home: Home) -> None:
    write_fake_model(home.models / "a")
    write_fake_model(home.models / "b")
    catalog = Catalog(
        home,
        settings(a=ModelSettings(aliases=("gpt-4o", "b")), b=ModelSettings(aliases=("gpt-4o", "claude"))),
    )
    assert catalog.resolve("gpt-4o").id == "a"
    assert catalog.resolve("claude").id == "b"
    # An id that was imported later is never hidden by an alias.
    assert catalog.resolve("b").id == "b"


def test_an_alias_may_stand_for_all_names_that_begin_like_it(home: Home) -> None:
    """Agents ask for one of many names, and newer versions for newer ones."""
    for name in ("big", "small"):
        write_fake_model(home.models / name)
    catalog = Catalog(
        home,
        settings(
            "big",
            big=ModelSettings(aliases=("claude-*", "claude-haiku-1")),
            small=ModelSettings(aliases=("claude-haiku-*",)),
        ),
    )
    assert catalog.resolve("claude-opus-9").id == "big"
    assert catalog.resolve("claude-haiku-4-5-20251001").id == "small"
    assert catalog.resolve("claude-haiku-1").id == "big"
    assert Catalog(home, Settings()).resolve("small").id == "small"
    refusal(Catalog(home, settings(small=ModelSettings(aliases=("claude-*",)))), "laude-x")


def test_the_fallback_takes_unknown_names(home: Home) -> None:
    write_fake_model(home.models / "a")
    by_alias = settings(fallback="usual", a=ModelSettings(aliases=("usual",)))
    assert Catalog(home, by_alias).resolve("gpt-5").id == "a"
    assert Catalog(home, settings(fallback="a")).resolve("x" * 1_000_000).id == "a"
    # What a worker that serves by itself goes by.
    write_fake_model(home.models / "b")
    names = Catalog(home, settings(fallback="a", b=ModelSettings(aliases=("claude-*",)))).names
    assert [names.find(name) for name in ("a", "b", "claude-x", "gpt-5")] == ["a", "b", "b", "a"]
    # A fallback that does not exist is no fallback, and that is told.
    without = Catalog(home, settings(fallback="gone"))
    refusal(without, "gpt-5")
    assert "server.fallback_model: there is no model 'gone'" in without.problems[0]


def test_a_misspelled_name_is_not_the_fallback_where_a_model_is_meant(home: Home) -> None:
    """`mlx-supervisor unload` of a name that nobody has unloaded the fallback model."""
    write_fake_model(home.models / "a")
    catalog = Catalog(home, settings(fallback="a", b=ModelSettings(source="a", aliases=("claude-*",))))
    assert catalog.problems == ()
    for name in ("a", "b", "claude-x"):
        assert catalog.resolve(name, fallback=False).id == "b"
    with pytest.raises(PublicError, match="There are: b"):
        catalog.resolve("nobody", fallback=False)
    assert catalog.resolve("nobody").id == "b"


def test_what_the_settings_name_and_is_not_there_is_told(home: Home) -> None:
    for name in ("a", "half/broken"):
        write_fake_model(home.models / name)
    (home.models / "half" / "broken" / "config.json").unlink()
    named = settings(
        gone=ModelSettings(source="/gone"), b=ModelSettings(source="a", aliases=("c", "half/broken"))
    )
    catalog = Catalog(home, named)
    assert catalog.amiss() == [
        "models.b.aliases: 'half/broken' is a model's own id, and means that model",
        "gone can't be loaded: its folder does not exist",
    ]
    assert not Catalog(home, settings(b=ModelSettings(source="a"))).amiss(), (
        "others' models are others' matter"
    )


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ("smollm2-135", "smollm2-135m"),
        ("SMOLLM2-135M", "smollm2-135m"),
        ("smollm", "smollm2-135m"),
        ("qwen3", "mlx-community/Qwen3-8B-4bit"),
        ("gpt-4p", "gpt-4o"),
    ],
)
def test_an_unknown_name_gets_the_near_ones(home: Home, asked: str, offered: str) -> None:
    write_fake_model(home.models / "smollm2-135m")
    write_fake_model(home.models / "mlx-community" / "Qwen3-8B-4bit")
    catalog = Catalog(home, settings(smollm2_135m=ModelSettings(aliases=("gpt-4o",))))
    assert f"Did you mean {offered}" in refusal(catalog, asked).message


def test_without_near_names_some_are_listed(home: Home) -> None:
    for number in range(7):
        write_fake_model(home.models / f"model-{number}")
    message = refusal(Catalog(home, Settings()), "zzz").message
    assert "There are: model-0, model-1, model-2, model-3, model-4, among others" in message


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "a/../a",
        "./a",
        "a\0",
        "a\r\nx-injected: 1",
        "\x1b[31ma",
        "a\ud800",
        "x" * 1_000_000,
    ],
)
def test_names_are_looked_up_never_followed(home: Home, name: str) -> None:
    write_fake_model(home.models / "a")
    message = refusal(Catalog(home, Settings()), name).message
    assert len(message) < 400
    assert message.isprintable()


def test_a_configured_context_is_a_bound(home: Home) -> None:
    write_fake_model(home.models / "a")
    write_fake_model(home.models / "b")
    catalog = Catalog(home, settings(a=ModelSettings(context=100), b=ModelSettings(context=1_000_000)))
    assert [entry.context for entry in catalog.entries()] == [100, 4096]


def test_a_draft_is_found_as_a_source_is(home: Home, tmp_path: Path) -> None:
    write_fake_model(home.models / "large")
    write_fake_model(home.models / "org" / "small")
    write_fake_model(tmp_path / "elsewhere")
    (home.models / "broken").mkdir()
    folder = str(tmp_path / "elsewhere")
    catalog = Catalog(
        home,
        settings(
            named=ModelSettings(source=folder),
            by_id=ModelSettings(source="large", draft="org/small"),
            by_folder=ModelSettings(source="large", draft=folder),
            by_name=ModelSettings(source="large", draft="named"),
            by_hub=ModelSettings(source="large", draft="org/absent"),
            nowhere=ModelSettings(source="large", draft="absent"),
            half=ModelSettings(source="large", draft="broken"),
        ),
    )
    drafts = {entry.id: entry.draft for entry in catalog.entries()}
    assert drafts["named"] is None
    assert drafts["by-id"] == home.models / "org" / "small"
    assert drafts["by-folder"] == drafts["by-name"] == tmp_path / "elsewhere"
    problems = {entry.id: entry.problem for entry in catalog.entries() if entry.problem}
    assert problems.keys() == {"broken", "by-hub", "nowhere", "half"}
    assert problems["by-hub"] == (
        "its draft can't be used: org/absent is not in the local Hugging Face cache; "
        "get it with: mlx-supervisor pull org/absent"
    )
    assert str(problems["nowhere"]).startswith("its draft can't be used: its draft 'absent' is no model")
    assert str(problems["half"]).startswith("its draft 'broken' can't be used: ")


def test_sampling_is_of_the_settings_and_else_of_the_model(home: Home) -> None:
    folder = write_fake_model(home.models / "a")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    own = ModelSettings(source=str(folder), sampling=Sampling(temperature=0.2))
    assert Catalog(home, settings(a=own)).resolve("a").sampling == Sampling(temperature=0.2, top_p=0.9)
    assert Catalog(home, Settings()).resolve("a").sampling == Sampling(temperature=0.6, top_p=0.9)

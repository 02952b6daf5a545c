"""What the program that downloads a model, a process of its own, is asked and tells.

It reads one line of JSON from stdin, the request, and prints a line of JSON for each event. Order: any
number of `progress` (phase `asking` or `waiting`), a `plan`, any number of `progress`, then one `pulled`
(exit code 0) or `failed` (exit code 1). The end of its stdin ends it; what was downloaded stays, and the
next one goes on from there.
"""

import re
from typing import Final, Literal

import msgspec

RECORD_NAME: Final = ".mlx-supervisor.json"
"""In a repository's folder of the cache: what a download that is not finished is to become."""
PARTIAL_SUFFIX: Final = ".incomplete"
"""Of a blob of which only the beginning is there."""
LOCK_NAME: Final = "mlx-supervisor.lock"
"""In the repository's folder under `.locks`: held by whoever downloads into it."""
MAIN: Final = "main"

_REPO: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_PAGE: Final = re.compile(r"https?://[^/]+/|hf\.co/|huggingface\.co/")
_SHOWN_CHARACTERS: Final = 120

Phase = Literal["asking", "waiting", "downloading"]
FailureCode = Literal[
    "bad_name",
    "not_found",
    "no_revision",
    "gated",
    "forbidden",
    "no_files",
    "no_space",
    "unreachable",
    "damaged",
    "disk",
    "hub_error",
    "ended",
]


class RepoName(msgspec.Struct, frozen=True):
    """A repository of the hub, and the revision of it that is wanted."""

    repo: str
    revision: str = MAIN

    @property
    def shown(self) -> str:
        """As people write it."""
        return self.repo if self.revision == MAIN else f"{self.repo}@{self.revision}"


def parse_repo(text: str) -> RepoName:
    """`ORG/NAME`, `ORG/NAME@REVISION`, or the address of its page. Raises ValueError with a sentence."""
    name = _PAGE.sub("", text.strip(), count=1)
    repo, at, revision = name.partition("@")
    repo = repo.rstrip("/")
    if not at and "/tree/" in repo:
        repo, _, revision = repo.partition("/tree/")
        at = "@"
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        shown = "".join(letter if letter.isprintable() else "�" for letter in text[:_SHOWN_CHARACTERS])
        raise ValueError(
            f"'{shown}' names no repository of the hub: write ORG/NAME or ORG/NAME@REVISION, as in "
            "mlx-community/Qwen3-4B-4bit"
        )
    if at and not is_revision(revision):
        raise ValueError(
            f"'{revision[:_SHOWN_CHARACTERS]}' can't be a revision of {repo}: write a branch, tag or commit"
        )
    return RepoName(repo, revision or MAIN)


def is_revision(text: str) -> bool:
    """Whether it can be a branch, a tag or a commit."""
    return len(text) <= 200 and _REVISION.fullmatch(text) is not None and ".." not in text


def is_commit(text: str) -> bool:
    """Whether it is a full commit hash."""
    return _COMMIT.fullmatch(text) is not None


def repo_folder(repo: str) -> str:
    """The name of the repository's folder in the Hugging Face cache."""
    return f"models--{repo.replace('/', '--')}"


class PullRequest(msgspec.Struct, frozen=True):
    """What is wanted. The token is a secret: it is in no argument, no log and no event."""

    repo: str
    cache: str
    """The Hugging Face cache's folder."""
    revision: str = MAIN
    include: tuple[str, ...] = ()
    """Patterns of file names; empty means all that a model needs."""
    token: str | None = None
    """None is the one that the client's own tools would use."""
    retry_wait_s: float = 1.0
    """The first wait after a broken connection; each next one is twice as long."""


class PullPlan(msgspec.Struct, frozen=True, tag_field="event", tag="plan"):
    """What is going to be downloaded, once the hub has told."""

    repo: str
    """Its name now: a renamed repository is downloaded under its new one."""
    revision: str
    commit: str
    files: int
    total_bytes: int
    there_bytes: int
    """Of these, how many are there already."""


class PullProgress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """`done_bytes` of `total_bytes` are on the disk. 0 of 0 while the hub is asked."""

    phase: Phase
    done_bytes: int = 0
    total_bytes: int = 0


class Pulled(msgspec.Struct, frozen=True, tag_field="event", tag="pulled"):
    """Everything is there, and its checksums are right."""

    repo: str
    commit: str
    directory: str
    total_bytes: int
    fetched_bytes: int


class PullFailed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """`message` is a sentence for the user; what was downloaded is kept."""

    code: FailureCode
    message: str


PullEvent = PullPlan | PullProgress | Pulled | PullFailed

_decoder = msgspec.json.Decoder(PullEvent)


def decode_event(line: bytes) -> PullEvent:
    """Raises msgspec.MsgspecError for anything that is not an event of this program."""
    return _decoder.decode(line)


def encode_event(event: PullEvent) -> bytes:
    """The event as it is printed, with its line end."""
    return msgspec.json.encode(event) + b"\n"


class PullFile(msgspec.Struct, frozen=True):
    """One file of a repository: its path there, its blob's name here, its size."""

    path: str
    blob: str
    size_bytes: int


class PullRecord(msgspec.Struct, frozen=True):
    """The record of an unfinished download; it is removed when the model is whole."""

    repo: str
    revision: str
    commit: str
    files: tuple[PullFile, ...]
    include: tuple[str, ...] = ()

    @property
    def contents(self) -> tuple[PullFile, ...]:
        """One file for each blob: equal files are downloaded once."""
        return tuple({file.blob: file for file in self.files}.values())

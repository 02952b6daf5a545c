"""The hub, through its own client: what a repository holds, and where each file's bytes are."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but not in an __all__
    build_hf_headers,
    hf_raise_for_status,
    http_stream_backoff,
)

from shared import __version__
from shared.pulling import RepoName
from supervisor.pulling.errors import PassingError, PullError

_ANSWER_S: Final = 30.0
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that another try may not get."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
_BLOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Listed:
    """One file as the repository lists it; `size_bytes` and `blob` are None where the hub does not say."""

    def __init__(self, path: str, size_bytes: int | None, blob: str | None) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.blob = blob


class Repository:
    """A repository at one commit. `repo` is its name now."""

    def __init__(self, repo: str, commit: str, files: list[Listed]) -> None:
        self.repo = repo
        self.commit = commit
        self.files = files


class Source:
    """Where a file's bytes are, and how to check them."""

    def __init__(self, url: str, headers: dict[str, str], blob: str, size_bytes: int) -> None:
        self.url = url
        self.headers = headers
        self.blob = blob
        self.size_bytes = size_bytes


class Checksum:
    """The checksum that a blob's name is: SHA-256 of large files, git's object id of small ones.

    A hub that names them otherwise can be checked by size alone.
    """

    def __init__(self, blob: str, size_bytes: int) -> None:
        self._wanted = blob
        self._hash = None
        if _SHA256.fullmatch(blob):
            self._hash = hashlib.sha256()
        elif _SHA1.fullmatch(blob):
            # Source: git's object format, as `git hash-object` computes it.
            self._hash = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        if self._hash is not None:
            self._hash.update(data)

    def is_right(self) -> bool:
        return self._hash is None or self._hash.hexdigest() == self._wanted


class Hub:
    """The hub at `endpoint`, else HF_ENDPOINT, with the user's login or `token`.

    Methods raise PullError, or what may pass: PassingError, and httpx2.TransportError without a connection.
    """

    def __init__(self, token: str | None, endpoint: str | None = None) -> None:
        self._token = token
        self._endpoint = endpoint or constants.ENDPOINT
        self._agent = {"mlx-supervisor": __version__}
        self._api = HfApi(
            self._endpoint, token=token, library_name="mlx-supervisor", library_version=__version__
        )

    def describe(self, wanted: RepoName) -> Repository:
        """What the repository holds at the wanted revision."""
        with self._told(wanted):
            info = self._api.model_info(
                wanted.repo, revision=wanted.revision, files_metadata=True, timeout=_ANSWER_S
            )
        if not info.sha or not _SHA1.fullmatch(info.sha):
            raise PullError("hub_error", f"the hub at {self._endpoint} names no commit of {wanted.repo}")
        files = [
            Listed(
                sibling.rfilename,
                sibling.lfs.size if sibling.lfs else sibling.size,
                sibling.lfs.sha256 if sibling.lfs else sibling.blob_id,
            )
            for sibling in info.siblings or []
        ]
        return Repository(info.id, info.sha, files)

    def locate(self, wanted: RepoName, commit: str, path: str) -> Source:
        """Where the bytes of one file are now. Such addresses are signed, and don't last."""
        url = hf_hub_url(wanted.repo, path, revision=commit, endpoint=self._endpoint)
        with self._told(wanted):
            metadata = get_hf_file_metadata(
                url,
                endpoint=self._endpoint,
                token=self._token,
                timeout=_ANSWER_S,
                library_name="mlx-supervisor",
                library_version=__version__,
            )
        if metadata.etag is None or metadata.size is None or not _BLOB.fullmatch(metadata.etag):
            raise PullError("hub_error", f"the hub at {self._endpoint} tells no size or checksum of {path}")
        headers = build_hf_headers(token=self._token, user_agent=self._agent)
        headers["Accept-Encoding"] = "identity"
        if _origin(metadata.location) != _origin(url):
            # The store of large files has signed addresses; the login is not for it.
            headers.pop("authorization", None)
        return Source(metadata.location, headers, metadata.etag, metadata.size)

    @contextmanager
    def open(self, wanted: RepoName, source: Source, offset: int) -> Iterator[httpx2.Response]:
        """The answer with the file's bytes from `offset` on, or from the beginning: see its status."""
        headers = dict(source.headers)
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with http_stream_backoff(
            "GET",
            source.url,
            headers=headers,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            retry_on_exceptions=(),
            retry_on_status_codes=(),
        ) as response:
            if response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                with self._told(wanted):
                    hf_raise_for_status(response)
            yield response

    @contextmanager
    def _told(self, wanted: RepoName) -> Iterator[None]:
        """Turn what the client raises into a sentence; broken connections go through."""
        repo, shown = wanted.repo, wanted.shown
        page = f"{self._endpoint}/{repo}"
        try:
            yield
        except GatedRepoError as error:
            if error.response.status_code == HTTPStatus.FORBIDDEN:
                advice = f"your login is not among those who may; ask for access at {page}"
            else:
                advice = f"accept its conditions at {page}, then log in with `hf auth login` or set HF_TOKEN"
            raise PullError("gated", f"{repo} is gated: {advice}") from error
        except DisabledRepoError as error:
            raise PullError("forbidden", f"{repo} was disabled by the hub and can't be downloaded") from error
        except RepositoryNotFoundError as error:
            raise PullError(
                "not_found",
                f"{repo} does not exist at {self._endpoint}, or it is private and "
                + self._login("may not see it"),
            ) from error
        except RevisionNotFoundError as error:
            raise PullError(
                "no_revision", f"{repo} has no revision '{wanted.revision}'; see {page}"
            ) from error
        except EntryNotFoundError as error:
            raise PullError("hub_error", f"{shown} lists a file that the hub does not have") from error
        except HFValidationError as error:
            raise PullError(
                "bad_name", f"'{repo}' can't be a repository: {str(error).split(chr(10))[0]}"
            ) from error
        except OfflineModeIsEnabled as error:
            raise PullError(
                "unreachable",
                f"{shown} can't be downloaded while HF_HUB_OFFLINE is set; unset it and try again",
            ) from error
        except FileMetadataError as error:
            raise PullError(
                "hub_error", f"{self._endpoint} does not answer as a hub does; is HF_ENDPOINT right?"
            ) from error
        except HfHubHTTPError as error:
            if error.response.status_code in _PASSING:
                raise PassingError(self._busy(error.response.status_code)) from error
            raise self._refused(error.response.status_code, repo) from error
        except httpx2.TransportError:
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise PullError(
                "hub_error", f"{self._endpoint} does not answer as a hub does ({type(error).__name__})"
            ) from error

    def fetch_whole(
        self, wanted: RepoName, commit: str, path: str, cache: Path, told: Callable[[int], None]
    ) -> None:
        """Have the client download one file into the cache at `cache` by the means that it prefers, Xet.

        Broken off, it begins anew the next time. Whatever was told is taken back when it fails.
        """
        progress = _progress_class(told)
        try:
            with self._told(wanted):
                hf_hub_download(
                    wanted.repo,
                    path,
                    revision=commit,
                    cache_dir=cache,
                    endpoint=self._endpoint,
                    token=self._token,
                    library_name="mlx-supervisor",
                    library_version=__version__,
                    tqdm_class=progress,  # it mimics one, as the client allows
                )
        except BaseException:
            told(-progress.told_bytes)
            raise

    def unreachable(self, error: httpx2.TransportError) -> PullError:
        """The sentence for a hub that can't be reached, or no longer."""
        reason = str(error).strip().rstrip(".") or type(error).__name__
        return PullError(
            "unreachable",
            f"the hub at {self._endpoint} can't be reached ({reason[:200]}); what is there already is kept, "
            "try again later",
        )

    def _busy(self, status: int) -> str:
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return "the hub has had too many requests from here; try again in some minutes"
        return f"the hub at {self._endpoint} answered with status {status}; try again later"

    def _refused(self, status: int, repo: str) -> PullError:
        if status == HTTPStatus.UNAUTHORIZED:
            return PullError(
                "forbidden",
                f"the hub refuses the login; to get {repo}, renew it with `hf auth login` or mend HF_TOKEN",
            )
        if status == HTTPStatus.FORBIDDEN:
            return PullError("forbidden", f"the hub refuses {repo} to you: {self._login('is not enough')}")
        return PullError(
            "hub_error", f"the hub at {self._endpoint} answered with status {status}; try again later"
        )

    def _login(self, insufficient: str) -> str:
        headers = build_hf_headers(token=self._token)
        if "authorization" in headers:
            return f"your login {insufficient}"
        return "you are not logged in; log in with `hf auth login` or set HF_TOKEN"


def _progress_class(told: Callable[[int], None]) -> "type[_Progress]":
    """A class of progress bars, as the client makes one for each file, that draws nothing."""
    return type("Progress", (_Progress,), {"told": staticmethod(told), "told_bytes": 0})


class _Progress:
    """What the client calls of a progress bar."""

    told: Callable[[int], None]
    told_bytes = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, amount: float | None = 1) -> None:
        change = int(amount or 0)
        type(self).told_bytes += change
        type(self).told(change)

    def __getattr__(self, _: str) -> Callable[..., None]:
        """The rest is for the eye."""
        return lambda *_, **__: None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = httpx2.URL(url)
    return parts.scheme, parts.host, parts.port

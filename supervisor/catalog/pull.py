"""Downloading a model from the hub: a program of our own does it (supervisor.pulling), and we listen.

The supervisor never imports the hub's client, and what happens to a download happens to its process alone.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared.pulling import FailureCode, Pulled, PullEvent, PullFailed, PullRequest, decode_event
from supervisor.catalog.helper import Helper, HelperError, helper_environment

# -P: what lies in the current folder is none of our program.
PULLER: Final = (sys.executable, "-P", "-m", "supervisor.pulling")

_NAMES: Final = frozenset(
    {
        "ALL_PROXY",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "XDG_CACHE_HOME",
    }
)


class ModelPullError(Exception):
    """Raised when a model was not downloaded; the message is a sentence for people."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def pull_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the program needs: the client's own variables, the user's login among them, and how to get out."""
    chosen = {
        name: value for name, value in environ.items() if name.startswith("HF_") or name.upper() in _NAMES
    }
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return helper_environment(environ) | chosen | quiet


async def pull_model(
    request: PullRequest,
    told: Callable[[PullEvent], None],
    *,
    environ: Mapping[str, str],
    command: Sequence[str] = PULLER,
) -> Pulled:
    """Download what `request` names, and pass on every event.

    Raises ModelPullError. When it fails or is cancelled, the program is gone, and the next download of the
    same repository goes on from what is there.
    """
    program = Helper("download", command, pull_environment(environ), decode_event)
    try:
        ended = await program.run(told, request=msgspec.json.encode(request) + b"\n")
    except HelperError as error:
        raise ModelPullError("ended", str(error)) from error
    match ended.last:
        case Pulled() as pulled if ended.returncode == 0:
            return pulled
        case PullFailed(code=code, message=message):
            raise ModelPullError(code, message)
        case _:
            raise ModelPullError("ended", f"{request.repo}: {ended.describe('download')}")


def folder_of(pulled: Pulled) -> Path:
    """The folder that the model is in now."""
    return Path(pulled.directory)

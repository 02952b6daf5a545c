"""Why a load failed, told from what mlx, mlx-lm and transformers raise."""

import errno
from typing import Final

from shared.status import FailureKind

_PASSING: Final = frozenset(
    {
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE),
    }
)
"""Errors of the system that may be gone at the next try; all others are about what lies on the disk."""
_ABOUT_FILES: Final = (ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError)
"""What Python code raises on values that it can't use: nothing but the files gives it any."""
_MLX_READS: Final = ("[load_", "[read]")
"""How mlx begins the errors of reading a file. It raises nothing but RuntimeError for all there is."""
_NO_MEMORY: Final = (
    "malloc",
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "cannot allocate memory",
)


class LoadError(Exception):
    """Raised when a model can't be loaded. The message is one line, for the log and for people."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(" ".join(message.split())[:500])
        self.kind = kind


def explain(error: Exception, doing: str = "", *, unknown: FailureKind = FailureKind.OTHER) -> LoadError:
    """The same failure with its kind, `unknown` for one that says nothing of that; `doing` says at what it
    happened."""
    if isinstance(error, LoadError):
        return error
    text = str(error) or type(error).__name__
    kind = _kind(error, text) or unknown
    if kind in (FailureKind.OTHER, FailureKind.UNUSABLE) and type(error) is not Exception:
        text = f"{type(error).__name__}: {text}"
    return LoadError(kind, f"{doing}: {text}" if doing else text)


def _kind(error: Exception, text: str) -> FailureKind | None:
    lower = text.lower()
    if isinstance(error, MemoryError) or any(sign in lower for sign in _NO_MEMORY):
        return FailureKind.MEMORY
    if isinstance(error, FileNotFoundError):
        return FailureKind.MISSING
    if isinstance(error, OSError):
        # Those without a number are transformers' own, about files that it can't make sense of.
        return FailureKind.OTHER if error.errno in _PASSING else FailureKind.UNUSABLE
    if isinstance(error, ValueError):
        # mlx: "Missing 2 parameters: ...", when a shard is not there.
        if text.startswith("Missing ") and "parameters" in text:
            return FailureKind.MISSING
        # mlx-lm: an architecture it has no code for; a kind of cache that its batches can't hold.
        if "not supported" in lower or "unsupported" in lower or "does not yet support" in lower:
            return FailureKind.UNSUPPORTED
    if isinstance(error, _ABOUT_FILES) or text.startswith(_MLX_READS):
        return FailureKind.UNUSABLE
    return None

"""Why a load failed, told from what mlx, mlx-lm and transformers raise."""

from shared.status import FailureKind


class LoadError(Exception):
    """Raised when a model can't be loaded. The message is one line, for the log and for people."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(" ".join(message.split())[:500])
        self.kind = kind


def explain(error: Exception, doing: str = "") -> LoadError:
    """The same failure with its kind; `doing` says at what it happened."""
    if isinstance(error, LoadError):
        return error
    text = str(error) or type(error).__name__
    kind = _kind(error, text)
    if kind is FailureKind.OTHER:
        text = f"{type(error).__name__}: {text}"
    return LoadError(kind, f"{doing}: {text}" if doing else text)


def _kind(error: Exception, text: str) -> FailureKind:
    lower = text.lower()
    if isinstance(error, MemoryError) or "malloc" in lower or "out of memory" in lower:
        return FailureKind.MEMORY
    if isinstance(error, FileNotFoundError):
        return FailureKind.MISSING
    if isinstance(error, ValueError):
        # mlx: "Missing 2 parameters: ...", when a shard is not there.
        if text.startswith("Missing ") and "parameters" in text:
            return FailureKind.MISSING
        # mlx-lm: an architecture it has no code for; a kind of cache that its batches can't hold.
        if "not supported" in lower or "unsupported" in lower or "does not yet support" in lower:
            return FailureKind.UNSUPPORTED
    return FailureKind.OTHER

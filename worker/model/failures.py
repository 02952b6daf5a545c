"""Why a load failed, told from what mlx, mlx-lm and transformers raise."""

from shared.status import FailureKind


class LoadError(Exception):
    """Raised when a model can't be loaded. The message is one line, for the log and for people."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(" ".join(message.split())[:500])
        self.kind = kind


def explain(error: Exception) -> LoadError:
    """The same failure with its kind."""
    if isinstance(error, LoadError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "malloc" in text or "memory" in text.lower():
        return LoadError(FailureKind.MEMORY, f"out of memory: {text}")
    if isinstance(error, FileNotFoundError):
        return LoadError(FailureKind.MISSING, text)
    if isinstance(error, ValueError) and ("not supported" in text or "unsupported" in text.lower()):
        return LoadError(FailureKind.UNSUPPORTED, text)
    return LoadError(FailureKind.OTHER, f"{type(error).__name__}: {text}")

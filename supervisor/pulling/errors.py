"""What can go wrong with a download, as sentences."""

from shared.pulling import FailureCode


class PullError(Exception):
    """Raised when a model can't be downloaded, or not further. The message is a sentence for the user."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PassingError(Exception):
    """Raised when the hub is busy or broken for now, and may work a moment later; tells it in a sentence."""


class DamagedError(Exception):
    """Raised when what arrived is not what the hub has: size or checksum are wrong."""

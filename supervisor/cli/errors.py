"""What a verb says when it can't do what was asked."""


class RefusedError(Exception):
    """Raised when a verb is refused: the message, a sentence, goes to stderr, and the exit code is 1."""


class NotRunningError(RefusedError):
    """Raised when no supervisor runs with the state folder."""

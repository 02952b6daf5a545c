"""What a verb says when it can't do what was asked."""


class RefusedError(Exception):
    """Raised when a verb is refused: the message, a sentence, goes to stderr, and the exit code is 1.

    `param` is the field of the request that the supervisor did not like, if it was one.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NotRunningError(RefusedError):
    """Raised when no supervisor runs with the state folder."""

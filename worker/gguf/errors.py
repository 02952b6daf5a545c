"""Why a file can't be imported."""


class GgufError(Exception):
    """Raised when a file can't be imported; the message is a sentence for the user."""

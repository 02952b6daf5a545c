"""What goes wrong with the history, in words for clients."""

from shared.errors import PublicError
from supervisor.database import DatabaseError


def history_unavailable(error: DatabaseError) -> PublicError:
    """503 when the state database refuses."""
    return PublicError(
        503,
        "history_unavailable",
        f"What is kept of responses can't be read or written now: {error}. "
        "Requests with `store: false` and their whole input do without.",
    )

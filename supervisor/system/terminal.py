"""The terminal that this process belongs to."""

import os


def has_terminal() -> bool:
    """Whether there is one, and it has not been closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True

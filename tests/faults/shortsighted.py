"""The real worker, which foresees less of an answer than it does: tests need not wait for long ones."""

import worker.reply
from worker.__main__ import main

if __name__ == "__main__":
    worker.reply.FORESEEN = 128  # type: ignore[misc]
    worker.reply.PIECE = 192  # type: ignore[misc]
    worker.reply.AHEAD = 64  # type: ignore[misc]
    main()

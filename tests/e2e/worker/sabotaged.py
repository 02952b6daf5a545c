"""The real worker with an engine that goes wrong at a word in the conversation.

`!die` ends the engine's thread, `!long` keeps it in native code for a minute.
"""

import mlx.core as mx

from worker.__main__ import main
from worker.engine.batch import Batch
from worker.engine.rows import Row

_insert = Batch.insert


def insert(self: Batch, row: Row) -> None:
    text = bytes(token for token in row.prompt if token < 256)
    if b"!die" in text:
        raise SystemExit("sabotage")
    if b"!long" in text:
        product = mx.random.normal((3000, 3000))
        for _ in range(200):
            product = product @ product
        mx.eval(product)
    _insert(self, row)


if __name__ == "__main__":
    Batch.insert = insert  # type: ignore[method-assign]
    main()

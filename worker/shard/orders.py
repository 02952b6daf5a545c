"""What rank 0 tells the other ranks, a line of JSON each, through their stdin; its end means that it is gone.

Every rank runs the same batch on its part of the same model. What rank 0 does with its batch it tells before
it does it, so that all do the same in the same order. What a row says is decided by rank 0 alone and comes to
the others as part of the computation. While there is nothing to do, nobody computes: mlx-lm's server shares
requests in sums of their own, in which all ranks wait for each other all the time.
"""

import msgspec

from shared import __version__
from shared.launch import Options


class RankRecord(msgspec.Struct, frozen=True):
    """The first line: what a rank is. The model folder has the same path on every machine."""

    rank: int
    directory: str
    options: Options
    addresses: tuple[tuple[str, ...], ...]
    """Of each rank, `IP:PORT`; with JACCL the first is where they meet."""
    protocol: str = __version__


class Join(msgspec.Struct, frozen=True, tag="join"):
    """All ranks are there: join them."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """The model is loaded everywhere: make a batch, with a prompt cache of so many bytes."""

    prompt_bytes: int
    end_tokens: tuple[int, ...]


class Insert(msgspec.Struct, frozen=True, tag="insert"):
    """A row; see `worker.engine.rows.Row`. How its tokens are chosen concerns rank 0 alone."""

    now: float
    id: int
    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    stop_tokens: tuple[int, ...]
    family: int | None
    session: str | None
    boundaries: tuple[int, ...]
    said: int
    whole: int


class Allow(msgspec.Struct, frozen=True, tag="allow"):
    """The row may have so many tokens, with its prompt."""

    row: int
    tokens: int


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    now: float
    row: int


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    now: float
    family: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Take a step, with so many tokens of each prompt."""

    now: float
    chunk: int


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Put what is kept of rows that are over into the prompt cache, each counted with so many bytes.

    They are rank 0's: a rank with other layers has others, and would keep and evict something else.
    """

    now: float
    sizes: tuple[int, ...]


class Shrink(msgspec.Struct, frozen=True, tag="shrink"):
    """Evict from the prompt cache until so many bytes are held."""

    now: float
    bytes: int


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """Keep no more than so many bytes in the prompt cache from now on."""

    now: float
    bytes: int


Order = Join | Open | Insert | Allow | Remove | Forget | Step | Settle | Shrink | Resize

decode_order = msgspec.json.Decoder(Order).decode

"""What goes into the engine and what comes out: plain data, made on one thread and read on the other."""

from typing import NamedTuple

import msgspec

from worker.request import Sampling
from worker.text.events import FinishReason


class Row(msgspec.Struct, frozen=True):
    """One sequence to generate."""

    id: int
    prompt: list[int]
    """Token ids, at least one."""
    max_tokens: int
    sampling: Sampling


class Output(NamedTuple):
    """One generated token. `finish` is set on a row's last one, which then is out of the batch."""

    row: int
    token: int
    finish: FinishReason | None


class Report(NamedTuple):
    """What one engine step brought, for all rows together."""

    outputs: list[Output]
    removed: list[int]
    """Rows that were taken out as asked."""
    failed: list[int]
    """Rows that are out because the engine failed on them."""

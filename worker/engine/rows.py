"""What goes into the engine and what comes out: plain data, made on one thread and read on the other."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from worker.engine.constraint_rows import Control
from worker.request import Sampling
from worker.text.events import FinishReason
from worker.text.logprobs import Scored


class Row(msgspec.Struct, frozen=True):
    """One sequence to generate."""

    id: int
    prompt: list[int]
    """Token ids, at least one."""
    max_tokens: int
    sampling: Sampling
    min_tokens: int = 0
    """No token that ends the row is said before it has so many."""
    ignore_eos: bool = False
    """The model's own end tokens end nothing."""
    stop_tokens: tuple[int, ...] = ()
    """Further token ids that end the row."""
    logprobs: int | None = None
    """Alternatives to tell for each token, beside its own log probability; None tells neither."""
    control: Control | None = None
    """What it may say, when it may not say just anything; no other row's."""
    family: int | None = None
    """Rows with the same number have the same prompt, which is computed once; see Batch.forget."""
    adapter: str = ""
    """Names the adapter's weights: prompt state is not shared between different ones."""
    session: str | None = None
    """The conversation it belongs to, when the client says so; its state is kept in preference."""
    boundaries: tuple[int, ...] = ()
    """Lengths of prefixes that other prompts are likely to begin with: its system prompt, all its turns."""
    said: int = 0
    """Tokens at the end of the prompt that are its own: it goes on from them."""
    whole: int = 0
    """Tokens it may have in the end, with the prompt, where `max_tokens` is only what there is memory for."""


class Output(NamedTuple):
    """One generated token. `finish` is set on a row's last one, which then is out of the batch."""

    row: int
    token: int
    finish: FinishReason | None
    logprobs: Scored | None = None
    """For rows that ask for them."""
    proposed: int = 0
    """Tokens that the draft proposed to say after this one."""
    drafted: bool = False
    """Whether it is one of those."""


class Report(NamedTuple):
    """What one engine step brought, for all rows together."""

    outputs: list[Output]
    removed: list[int]
    """Rows that were taken out as asked."""
    failed: list[int]
    """Rows that are out because the engine failed on them."""
    cached: Sequence[tuple[int, int]] = ()
    """Rows that have begun, and how many tokens of the prompt needed no computing."""

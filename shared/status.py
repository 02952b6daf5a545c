"""Status messages: what a worker tells its supervisor through the status pipe, a line of JSON each.

Order: one `hello`, then (with a launch record) any number of `progress`, then one `ready` or `failed`.
"""

from enum import IntEnum, StrEnum
from typing import Literal

import msgspec

STATUS_FD_ARGUMENT = "--status-fd"
"""The worker's only argument: the descriptor of the status pipe's writing end."""


class ExitCode(IntEnum):
    """Exit codes of a worker process."""

    OK = 0
    """Told to stop, or the supervisor is gone."""
    FAILED = 1
    """The model could not be loaded; a `failed` message said why."""
    USAGE = 2
    """No usable launch record, or one of another version."""
    ENGINE = 3
    """The engine died while serving."""


class FailureKind(StrEnum):
    """Why a load failed."""

    MISSING = "missing"  # no such folder, or files in it are missing
    UNSUPPORTED = "unsupported"  # the architecture or a file format is not supported
    UNUSABLE = "unusable"  # its files can't be read, or don't make a model together
    MEMORY = "memory"  # ran out of memory
    SOCKET = "socket"  # the socket could not be bound
    OTHER = "other"  # another try may end otherwise, as for nothing but memory and the socket


class Memory(msgspec.Struct, frozen=True):
    """Bytes, read off MLX and the OS. `limit` is 0 where there is none."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    footprint_bytes: int = 0
    """The whole process as the OS sees it: phys_footprint on macOS, RSS elsewhere."""
    weights_bytes: int = 0
    draft_bytes: int = 0
    """Weights of the draft model."""
    kv_bytes: int = 0
    """KV cache of the running rows, and of the draft."""
    prompt_cache_bytes: int = 0
    reserved_bytes: int = 0
    """The process, the weights, and what the rows that run may come to hold before they ask for more."""
    wanted_bytes: int = 0
    """What it would have to be allowed to take for a row that waits for more, or will need it soon; 0 without
    one."""
    wanted_to_go_on: bool = False
    """Whether that is for a request that has begun: it can't well be given back."""
    stalled: bool = False
    """Whether no row runs until such a one goes on."""
    number: int = 0
    """Counts the readings of one process: what a later one says is true."""
    working_set_bytes: int = 0
    """What the GPU may hold before macOS pages (Metal's recommended working set); 0 on CPU."""


class Hello(msgspec.Struct, frozen=True, tag_field="event", tag="hello"):
    """Said at once, before the heavy imports and with the record unread."""

    version: str
    pid: int


class Warm(msgspec.Struct, frozen=True, tag_field="event", tag="warm"):
    """Said when the heavy imports are done; a spare waits here for its record."""

    import_s: float


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """`done` of `total` in the unit of `phase` (bytes for weights); total 0 is unknown.

    Also sent every second as a sign of life while a load runs.
    """

    phase: Literal["weights", "tokenizer", "warmup"]
    done: int = 0
    total: int = 0


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """Said only after one token has really been generated through the engine."""

    socket: str
    model: str
    pid: int
    capabilities: tuple[str, ...]
    """What the model can: `chat`, `completions`, `decisions`, `embeddings`, and in chats `tools`,
    `structured_output`, `thinking`."""
    context_window: int
    memory: Memory
    load_s: float


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The load failed; the process exits with ExitCode.FAILED right after."""

    kind: FailureKind
    message: str


Status = Hello | Warm | Progress | Ready | Failed

_decoder = msgspec.json.Decoder(Status)


def decode_status(line: bytes) -> Status:
    """Raises msgspec.MsgspecError for anything that is not a status message."""
    return _decoder.decode(line)


def encode_status(status: Status) -> bytes:
    """The message as it goes through the pipe, with its line end."""
    return msgspec.json.encode(status) + b"\n"

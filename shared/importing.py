"""What the GGUF importer, a process of its own, tells whoever started it: a line of JSON each on stdout.

Order: any number of `progress`, then one `imported` (exit code 0) or `failed` (exit code 1).
"""

from typing import Final, Literal

import msgspec

RECORD_NAME: Final = "import.json"
"""In the model's folder: where the model came from."""

PARTIAL_PREFIX: Final = ".importing-"
"""Folders that begin like this are imports under way, or what a crash left of one; never models."""


class ImportRecord(msgspec.Struct, frozen=True):
    """`import.json`."""

    file: str
    """Name of the file, without its folder."""
    size_bytes: int
    sha256: str
    tensor_types: dict[str, int]
    """How many tensors the file has of each type, such as `Q4_1`."""
    importer: str
    """Version of this package."""
    name: str | None = None
    """The model's name as the file gives it."""
    license: str | None = None


class ImportProgress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """`done` of `total` bytes in a phase; phases come in this order."""

    phase: Literal["checksum", "weights", "tokenizer"]
    done: int
    total: int


class Imported(msgspec.Struct, frozen=True, tag_field="event", tag="imported"):
    """The model is complete in `directory`."""

    directory: str
    architecture: str
    weights_bytes: int


class ImportFailed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """Nothing was left behind; `message` is a sentence for the user."""

    message: str


ImportEvent = ImportProgress | Imported | ImportFailed

_decoder = msgspec.json.Decoder(ImportEvent)


def decode_event(line: bytes) -> ImportEvent:
    """Raises msgspec.MsgspecError for anything that is not an importer's event."""
    return _decoder.decode(line)


def encode_event(event: ImportEvent) -> bytes:
    """The event as it is printed, with its line end."""
    return msgspec.json.encode(event) + b"\n"

"""One prompt state as a file: a header, the tokens, the numbers. Both have checksums.

    magic | header's length, u32 | header's CRC-32, u32 | header, JSON | tokens, i32 | arrays, in order

All numbers are little-endian, as on every machine that mlx runs on.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from worker.engine.host_state import Form, HostState, Raw, StateError, itemsize
from worker.engine.prompt_cache import Tokens

SUFFIX: Final = ".kv"
TEMPORARY: Final = ".writing"
_MAGIC: Final = b"mlxkv\x001\n"
_LENGTHS: Final = struct.Struct("<II")
_MOST_HEADER_BYTES: Final = 2**24


class Header(msgspec.Struct, frozen=True):
    """What is known of a state without reading its numbers."""

    identity: str
    adapter: str
    session: str | None
    trimmable: bool
    token_count: int
    token_sum: int
    """CRC-32 of the tokens."""
    form: Form
    sums: tuple[int, ...]
    """CRC-32 of each array."""


def write(path: Path, header: Header, tokens: Tokens, host: HostState) -> int:
    """Write the file, whole or not at all, for the owner's eyes alone; returns its bytes. Raises OSError."""
    encoded = msgspec.json.encode(header)
    temporary = path.with_suffix(f".{os.getpid()}{TEMPORARY}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _LENGTHS.pack(len(encoded), zlib.crc32(encoded)) + encoded)
            file.write(np.ascontiguousarray(tokens, dtype="<i4").data)
            for array in host.arrays:
                file.write(array.data)
            size = file.tell()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return size


def header_of(tokens: Tokens, host: HostState, **known: object) -> Header:
    """The header for a state; `known` are identity, adapter, session and trimmable."""
    return Header(
        token_count=len(tokens),
        token_sum=zlib.crc32(np.ascontiguousarray(tokens, dtype="<i4").data),
        form=host.form,
        sums=tuple(zlib.crc32(array.data) for array in host.arrays),
        **known,  # type: ignore[arg-type]
    )


def read_head(path: Path) -> tuple[Header, Tokens]:
    """Header and tokens. Raises OSError, StateError."""
    with _opened(path) as file:
        return _head(file, os.fstat(file.fileno()).st_size)


def read(path: Path, expected: Callable[[Header], bool]) -> tuple[Header, Tokens, HostState]:
    """The whole state, once every checksum is right. Raises OSError, StateError."""
    with _opened(path) as file:
        header, tokens = _head(file, os.fstat(file.fileno()).st_size)
        if not expected(header):
            raise StateError("it is another model's")
        arrays: list[Raw] = []
        for form, total in zip(header.form.arrays, header.sums, strict=True):
            width = itemsize(form.dtype)
            array = np.empty(int(np.prod(form.shape, dtype=np.int64)), dtype=f"<u{width}")
            if file.readinto(array.data.cast("B") if array.size else bytearray()) != array.nbytes:
                raise StateError("it is cut short")
            if zlib.crc32(array.data) != total:
                raise StateError("its numbers have changed")
            arrays.append(array)
    return header, tokens, HostState(header.form, arrays)


def _opened(path: Path) -> BufferedReader:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")


def _head(file: BufferedReader, size: int) -> tuple[Header, Tokens]:
    start = file.read(len(_MAGIC) + _LENGTHS.size)
    if len(start) != len(_MAGIC) + _LENGTHS.size or not start.startswith(_MAGIC):
        raise StateError("it is no state of this format")
    length, total = _LENGTHS.unpack(start[len(_MAGIC) :])
    encoded = file.read(length) if length <= _MOST_HEADER_BYTES else b""
    if len(encoded) != length or zlib.crc32(encoded) != total:
        raise StateError("its header has changed")
    try:
        header = msgspec.json.decode(encoded, type=Header)
    except msgspec.MsgspecError as error:
        raise StateError(f"its header makes no sense: {error}") from error
    numbers = 4 * header.token_count + sum(
        itemsize(form.dtype) * int(np.prod(form.shape, dtype=np.int64)) for form in header.form.arrays
    )
    if len(header.sums) != len(header.form.arrays) or size != len(start) + length + numbers:
        raise StateError("it is cut short")
    raw = file.read(4 * header.token_count)
    if zlib.crc32(raw) != header.token_sum:
        raise StateError("its tokens have changed")
    return header, np.frombuffer(raw, dtype="<i4")

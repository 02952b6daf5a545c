"""What makes prompt state fit a model: equal identities compute equal caches for equal tokens."""

import hashlib
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Final

_FORMAT: Final = "1"
_FILES: Final = ("config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_SAMPLE_BYTES: Final = 256
_MOST_HEADER_BYTES: Final = 2**27


def identity_of(directory: Path, *, computed: str) -> str:
    """A digest over configuration, tokenizer and weights in `directory`, and the versions that compute.

    `computed` names what else changes the numbers: the device, the precision. Weights are told apart by
    every tensor's name, type, shape and a sample of its numbers: reading them whole takes as long as
    loading them. Raises OSError.
    """
    digest = hashlib.sha256()
    versions = (importlib.metadata.version(name) for name in ("mlx", "mlx-lm"))
    digest.update("\0".join((_FORMAT, computed, *versions)).encode())
    for name in _FILES:
        path = directory / name
        if path.is_file():
            digest.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode() + _weights(path))
    return digest.hexdigest()[:32]


def adapter_identity(directory: Path) -> str:
    """A digest over an adapter folder's configuration and weights, which are small. Raises OSError."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in (".json", ".safetensors"):
            with path.open("rb") as file:
                digest.update(f"\0{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _weights(path: Path) -> bytes:
    """A digest of one file of weights. Source: the safetensors format's layout of header and data."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _MOST_HEADER_BYTES:
            return digest.digest()
        header = file.read(size)
        digest.update(header)
        try:
            tensors = json.loads(header)
        except ValueError:
            return digest.digest()
        for name in sorted(tensors):
            offsets = tensors[name].get("data_offsets") if isinstance(tensors[name], dict) else None
            if not offsets:
                continue
            start, end = (int(offset) + 8 + size for offset in offsets)
            for place in (start, (start + end) // 2):
                length = min(_SAMPLE_BYTES, end - place)
                digest.update(os.pread(file.fileno(), length, place))
    return digest.digest()

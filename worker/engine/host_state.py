"""Prompt state outside mlx: plain bytes, which any thread may hold, write and free.

Made of caches on the engine's thread, and made into caches there again.
"""

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import msgspec
import numpy as np
from mlx_lm.models import cache as kinds

_KINDS: Final = ("KVCache", "RotatingKVCache", "ArraysCache", "CacheList", "QuantizedKVCache")
"""Names that a file may give: nothing else is looked up."""
_DTYPES: Final = {
    str(dtype).removeprefix("mlx.core."): dtype
    for dtype in (
        mx.bfloat16,
        mx.bool_,
        mx.float16,
        mx.float32,
        mx.int16,
        mx.int32,
        mx.int64,
        mx.int8,
        mx.uint16,
        mx.uint32,
        mx.uint64,
        mx.uint8,
    )
}
_BY_SIZE: Final = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}

Tree = dict[str, Any] | int | float | str | bool | None
"""A state's structure: `{"array": i}`, `{"list": [...]}`, `{"tuple": [...]}`, or a plain value."""

Raw = np.ndarray[Any, np.dtype[Any]]


class StateError(ValueError):
    """Raised when state can't be written down, or what was written down is no state."""


class ArrayForm(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]


class Form(msgspec.Struct, frozen=True):
    """Everything of a state but its numbers."""

    layers: tuple[tuple[str, Any], ...]
    """Kind and tree of each layer's cache."""
    arrays: tuple[ArrayForm, ...]


@dataclass(frozen=True)
class HostState:
    """`arrays` has the numbers of each array of `form`, flat, as unsigned integers of their size."""

    form: Form
    arrays: list[Raw]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class Packing:
    """Copies one state out of mlx, an array at a time, so that it can be done between steps."""

    def __init__(self, state: list[Any]) -> None:
        self._left: list[Any] = []
        layers = tuple((_kind(layer), self._tree(layer.state)) for layer in state)
        forms = tuple(ArrayForm(_name(array), tuple(array.shape)) for array in self._left)
        self.form = Form(layers, forms)
        self._copied: list[Raw] = []
        self._left.reverse()

    def _tree(self, value: Any) -> Tree:
        if isinstance(value, mx.array):
            self._left.append(value)
            return {"array": len(self._left) - 1}
        if isinstance(value, tuple | list):
            name = "tuple" if isinstance(value, tuple) else "list"
            return {name: [self._tree(part) for part in value]}
        if value is None or isinstance(value, int | float | str):
            return value
        raise StateError(f"a cache holds a {type(value).__name__}")

    def step(self, most_bytes: int) -> HostState | None:
        """Copy at least one array and about `most_bytes`; the whole when all is copied."""
        copied = 0
        while self._left and (not copied or copied + self._left[-1].nbytes <= most_bytes):
            array = self._left.pop()
            raw = np.array(array.reshape(-1).view(_BY_SIZE[array.itemsize]), copy=True)
            self._copied.append(raw)
            copied += max(1, raw.nbytes)
        return None if self._left else HostState(self.form, self._copied)


def unpack(host: HostState) -> list[Any]:
    """The caches that `host` describes. Raises StateError."""
    try:
        arrays = [
            mx.array(raw).view(_DTYPES[form.dtype]).reshape(form.shape)
            for raw, form in zip(host.arrays, host.form.arrays, strict=True)
        ]
        state = []
        for kind, tree in host.form.layers:
            if kind not in _KINDS:
                raise StateError(f"there is no cache of the kind {kind!r}")
            state.append(getattr(kinds, kind).from_state(_value(tree, arrays)))
        mx.eval([layer.state for layer in state])
    except StateError:
        raise
    # What a file says reaches into mlx and mlx-lm, which raise whatever they like for nonsense.
    except Exception as error:
        raise StateError(f"{type(error).__name__}: {error}") from error
    return state


def itemsize(dtype: str) -> int:
    """Bytes of one number. Raises StateError."""
    if dtype not in _DTYPES:
        raise StateError(f"there is no dtype {dtype!r}")
    return int(_DTYPES[dtype].size)


def _value(tree: Any, arrays: list[Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((name, part),) = tree.items()
    if name == "array":
        return arrays[part]
    values = [_value(each, arrays) for each in part]
    if name == "list":
        return values
    # A list of caches names the kind of each in its own state.
    if len(values) == 2 and isinstance(values[1], str) and values[1] not in _KINDS:
        raise StateError(f"there is no cache of the kind {values[1]!r}")
    return tuple(values)


def _kind(layer: Any) -> str:
    name = type(layer).__name__
    if name not in _KINDS or type(layer) is not getattr(kinds, name):
        raise StateError(f"caches of the kind {name} are not written down")
    return name


def _name(array: Any) -> str:
    name = str(array.dtype).removeprefix("mlx.core.")
    if name not in _DTYPES:
        raise StateError(f"a cache holds {name}")
    return name

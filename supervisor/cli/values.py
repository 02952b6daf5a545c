"""Reads what was typed on the command line: texts, numbers, paths, choices.

Typer has pydantic do this, whose import takes longer than everything else a verb does, and its memory
would stay with `start`. So parameters of the types that we use get a reader of our own; any other, and
all of them under a typer that works differently, are left to typer.
"""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

_NOUNS = {int: "a whole number", float: "a number"}


class _Reader:
    """What typer asks for a parameter's value."""

    def __init__(self, convert: Callable[[str], object], low: float | None, high: float | None) -> None:
        self._convert = convert
        self._low = low
        self._high = high

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the verb's function takes it. Raises typer.BadParameter."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return [self._read(item) for item in value] if many else self._read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _read(self, value: object) -> object:
        # Defaults come typed already.
        read = self._convert(value) if isinstance(value, str) else value
        if isinstance(read, int | float) and not isinstance(read, bool):
            # NaN compares false with everything: written so that it is refused.
            if self._low is not None and not read >= self._low:
                raise ValueError(f"{value} is less than {self._low:g}")
            if self._high is not None and not read <= self._high:
                raise ValueError(f"{value} is more than {self._high:g}")
        return read


def read_without_pydantic(command: Any, settings: dict[str, Any]) -> None:
    """Give the parameters of `command`, and of the commands under it, readers of our own.

    `settings` are those of the context that it runs in.
    """
    # Not `command.params`: the option for help comes with the context.
    for parameter in command.get_params(typer.Context(command, **settings)):
        annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        convert = _converter(annotation)
        if convert is not None and hasattr(parameter, "_runtime_param"):
            low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
            parameter._runtime_param = _Reader(convert, low, high)
    for inner in getattr(command, "commands", {}).values():
        read_without_pydantic(inner, settings)


def _converter(annotation: Any) -> Callable[[str], object] | None:
    if get_origin(annotation) is list:
        return _converter(get_args(annotation)[0])
    if annotation in (str, Path):
        return annotation  # type: ignore[no-any-return]  # one of the two
    if annotation in _NOUNS:
        return lambda text: _number(text, annotation)
    if annotation is bool:
        return _switch
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return lambda text: _choice(text, annotation)
    return None


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {_NOUNS[kind]}") from None


def _choice(text: str, kind: type[Enum]) -> Enum:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(str(item.value) for item in kind)}") from None

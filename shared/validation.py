"""Client bytes to typed values; whatever is wrong becomes a 400 that names the field."""

import re
from typing import Any, Final, TypeVar

import msgspec
import orjson
from msgspec import UNSET, UnsetType

from shared.errors import PublicError, invalid

T = TypeVar("T")

# msgspec ends a message with the place: "Expected `str`, got `int` - at `$.messages[0].role`".
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises PublicError 400."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except RecursionError:
        raise PublicError(400, "invalid_json", "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PublicError(400, "invalid_json", f"The body is not valid JSON: {_why(body, error)}.") from None


def convert(value: Any, kind: type[T], param: str) -> T:
    """A decoded `value`, which is at `param` in the body, as `kind`. Raises PublicError 400."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), param) from None


def _why(body: bytes, error: Exception) -> str:
    # orjson says line and column, and knows a lone surrogate from a body that was cut.
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as better:
        return str(better)
    return str(error)


def _wrong_field(text: str, within: str = "") -> PublicError:
    match = _PLACE.match(text)
    what, path = (match["what"], match["path"]) if match else (text, None)
    if within:
        path = f"{within}{'' if not path or path.startswith('[') else '.'}{path or ''}"
    missing = _MISSING.match(what)
    if missing:
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return invalid(f"`{param}` is required.", param=param, code="missing_required_parameter")
    if not path:
        return invalid(f"The body is wrong: {what}.", code="invalid_type")
    return invalid(f"`{path}` is wrong: {what}.", param=path, code="invalid_type")


def given(value: T | UnsetType) -> T | None:
    """A field that may be absent and may not be null."""
    return None if value is UNSET else value


def check_range(
    value: float | None, param: str, low: float, high: float, *, low_included: bool = True
) -> None:
    """Raises PublicError 400 unless `value` is absent or within the range."""
    if value is None:
        return
    if value > high or value < low or (value == low and not low_included):
        bounds = f"{'at least' if low_included else 'more than'} {low:g}"
        if high != float("inf"):
            bounds += f" and at most {high:g}"
        raise invalid(f"`{param}` must be {bounds}, not {value:g}.", param=param)

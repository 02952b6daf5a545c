"""The body of a request for a model, looked into only as far as it takes to find that model."""

import codecs
import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shared.errors import PublicError, invalid
from shared.sizes import format_size

_SLICE_BYTES: Final = 1 << 20


class Envelope(msgspec.Struct, frozen=True):
    """What is read of a request for a model before it has one; the route validates all of it."""

    model: str
    stream: bool | None = None


_decoder = msgspec.json.Decoder(Envelope)
_keys_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def too_large(max_bytes: int) -> PublicError:
    """413 for a body over the cap."""
    return PublicError(
        413,
        "body_too_large",
        f"The body of a request may have {format_size(max_bytes)}; raise server.max_body in config.toml.",
    )


def open_envelope(body: bytes) -> Envelope:
    """What names the model. Raises PublicError, 400, for anything but one JSON object that does."""
    try:
        envelope = _decoder.decode(body)
        if not body.isascii():
            _check_unicode(body)
        if body.count(b'"model"') != 1 or b"\\u00" in body:
            _check_single_model(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except msgspec.DecodeError as error:
        raise _bad_json(str(error)) from None
    except UnicodeDecodeError as error:
        raise _bad_json(f"byte {error.start} is not valid UTF-8") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    return envelope


def with_fields(body: bytes, forced: Mapping[str, object], dropped: Iterable[str]) -> bytes:
    """The request without the fields `dropped` and with those `forced`; the others stay as they were
    written. `body` is one that `open_envelope` took. Raises PublicError, 400, where a name in it is none."""
    try:
        fields = _keys_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _bad_json(str(error)) from None
    for name in dropped:
        fields.pop(name, None)
    fields |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in forced.items()}
    return msgspec.json.encode(fields)


def _check_unicode(body: bytes) -> None:
    """The decoder passes over the text of fields that nobody asked for, the worker's does as well."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(body), _SLICE_BYTES):
        try:
            decoder.decode(view[start : start + _SLICE_BYTES])
        except UnicodeDecodeError as error:
            error.start += start
            raise
    decoder.decode(b"", final=True)


def _check_single_model(body: bytes) -> None:
    """Two `model` keys name two models, and which one counts would be anybody's guess.

    The key also occurs deeper down, in the schema of a tool say: those lie within another field's value.
    """
    values = _keys_decoder.decode(body)
    inside = sum(bytes(value).count(b'"model"') for value in values.values())
    keys = body.count(b'"model"') - inside
    if b"\\u00" in body:  # a letter of the key may be escaped; rare enough to be read in full
        keys = sum(key == "model" for key, _ in json.loads(body, object_pairs_hook=list))
    if keys > 1:
        raise invalid("'model' is given more than once.", param="model", code="duplicate_field")


def _bad_json(reason: str) -> PublicError:
    return PublicError(400, "invalid_json", f"The body is not valid JSON: {reason}.")


def _wrong_field(reason: str) -> PublicError:
    """msgspec's sentence, with the field's path in the shape that clients know: `model`, not `$.model`."""
    message, _, path = reason.partition(" - at `$.")
    if "required field `model`" in message:
        return invalid(
            "'model' is required: the id of a model to answer.", param="model", code="missing_field"
        )
    if not path:
        return PublicError(400, "invalid_body", "The body must be a JSON object.")
    param = path.removesuffix("`")
    return invalid(f"'{param}' is of the wrong type: {message[0].lower()}{message[1:]}.", param=param)

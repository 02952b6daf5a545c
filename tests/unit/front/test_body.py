"""What the supervisor reads of a body, and how it refuses what is none. Fault 30."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.envelope import open_envelope, with_fields
from shared.errors import PublicError
from supervisor.front.body import read_body
from supervisor.http.connected import ClientGone


def refusal(body: bytes) -> PublicError:
    with pytest.raises(PublicError) as caught:
        open_envelope(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a"}', "a"),
        (b' \r\n\t{"stream": true, "model" : "a"} ', "a"),
        (b'{"mod\\u0065l":"a"}', "a"),
        (b'{"model":"\\u00e4\xf0\x9f\x99\x82"}', "ä🙂"),
        (b'{"model":"a","stream":null,"n":1e999}', "a"),
        (b'{"model":"a","tools":[{"model":"b"},{"model":{"model":"c"}}]}', "a"),
        (b'{"model":"a","tools":[{"model":"b"}],"x":"\\u0000"}', "a"),
        (b'{"model":"a","prompt":"\\"model\\":\\"b\\""}', "a"),
        (b'{"model":""}', ""),
        (b'{"model":"../../etc/passwd"}', "../../etc/passwd"),
        (b'{"model":"' + b"x" * 1_000_000 + b'"}', "x" * 1_000_000),
    ],
)
def test_the_model_is_found(body: bytes, model: str) -> None:
    assert open_envelope(body).model == model


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"hello", "invalid_json", None),
        (b'{"model":"a"', "invalid_json", None),
        (b'{"model":"a"} x', "invalid_json", None),
        (b'{"model":"a","x":NaN}', "invalid_json", None),
        (b'{"model":"a","x":01}', "invalid_json", None),
        (b'{"model":"a","x":"\x01"}', "invalid_json", None),
        (b'{"model":"a","x":"\xff"}', "invalid_json", None),
        (b'{"model":"a","x":"\xed\xa0\x80"}', "invalid_json", None),
        (b'{"model":"a","x":"\xc3', "invalid_json", None),
        (b'{"model":"\xff"}', "invalid_json", None),
        (b'{"model":"\\ud800"}', "invalid_json", None),
        (b'{"model":"a","x":"\\ud800"}', "invalid_json", None),
        (b'\xef\xbb\xbf{"model":"a"}', "invalid_json", None),
        ('{"model":"a"}'.encode("utf-16"), "invalid_json", None),
        (b'{"model":"a","x":' + b"[" * 100_000, "invalid_json", None),
        (b'{"model":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", None),
        (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json", None),
        (b"[]", "invalid_body", None),
        (b'"a"', "invalid_body", None),
        (b"null", "invalid_body", None),
        (b"{}", "missing_field", "model"),
        (b'{"model":null}', "invalid_value", "model"),
        (b'{"model":1}', "invalid_value", "model"),
        (b'{"model":["a"]}', "invalid_value", "model"),
        (b'{"model":"a","stream":"yes"}', "invalid_value", "stream"),
        (b'{"model":"a","stream":1}', "invalid_value", "stream"),
        (b'{"model":"a","model":"a"}', "duplicate_field", "model"),
        (b'{"model":"a","mod\\u0065l":"b"}', "duplicate_field", "model"),
        (b'{"\\u006dodel":"a","\\u006D\\u006Fdel":"b"}', "duplicate_field", "model"),
        (b'{"model":"a","tools":[{"model":"b"}],"model":"c"}', "duplicate_field", "model"),
    ],
)
def test_the_refusal_names_the_fault(body: bytes, code: str, param: str | None) -> None:
    error = refusal(body)
    assert (error.code, error.param) == (code, param)
    assert len(error.message) < 300


def test_a_split_character_at_the_border_of_a_slice_is_fine() -> None:
    for shift in range(4):
        text = "x" * (2**20 - 20 + shift) + "🙂" * 10
        assert open_envelope(json.dumps({"model": "a", "x": text}, ensure_ascii=False).encode()).model == "a"
    error = refusal(b'{"model":"a","x":"' + b"x" * 2**20 + b'\xff"}')
    assert f"byte {2**20 + 18}" in error.message


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["model", "stream"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=3), st.text(), st.booleans())
def test_any_object_with_a_model_is_opened(fields: dict[str, Any], model: str, escape: bool) -> None:
    body = {**fields, "model": model, "stream": True}
    assert (
        open_envelope(json.dumps(body, ensure_ascii=escape).encode("utf-8", "surrogatepass")).model == model
    )


class Pieces:
    def __init__(self, *pieces: bytes, gone: bool = False) -> None:
        self.pieces = list(pieces)
        self.gone = gone
        self.asked = 0

    async def __call__(self) -> dict[str, Any]:
        self.asked += 1
        if not self.pieces:
            assert self.gone
            return {"type": "http.disconnect"}
        body = self.pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self.pieces) or self.gone}


async def test_a_body_is_read_whole() -> None:
    assert await read_body(Pieces(b"ab", b"", b"c"), None, max_bytes=3) == b"abc"
    assert await read_body(Pieces(b""), b"0", max_bytes=3) == b""


async def test_what_declares_too_much_is_not_read() -> None:
    pieces = Pieces(b"abcd")
    with pytest.raises(PublicError) as caught:
        await read_body(pieces, b"4", max_bytes=3)
    assert (caught.value.status, pieces.asked) == (413, 0)


async def test_reading_ends_at_the_cap() -> None:
    pieces = Pieces(b"ab", b"cd", b"ef", b"gh")
    with pytest.raises(PublicError) as caught:
        await read_body(pieces, None, max_bytes=3)
    assert (caught.value.status, pieces.asked) == (413, 2)


async def test_a_client_that_leaves_within_its_body() -> None:
    with pytest.raises(ClientGone):
        await read_body(Pieces(b"ab", gone=True), b"3", max_bytes=3)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ('{"model":"a","temperature":1e999,"n":1}', '{"model":"a","temperature":0,"n":1,"x":{"y":[1]}}'),
        ('{"user":"u", "model" : "a","user":"v"}', '{"model":"a","temperature":0,"x":{"y":[1]}}'),
        ('{"model":"ä","big":12345678901234567890123}', None),
    ],
)
def test_fields_are_forced_and_dropped_and_the_others_stay_as_they_were_written(
    body: str, changed: str | None
) -> None:
    forced = {"temperature": 0, "x": {"y": [1]}}
    made = with_fields(body.encode(), forced, ("user", "absent")).decode()
    if changed is None:
        changed = body[:-1] + ',"temperature":0,"x":{"y":[1]}}'
    assert made == changed


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(PublicError) as caught:
        with_fields(b'{"\\ud800":1,"model":"a"}', {"n": 1}, ())
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")

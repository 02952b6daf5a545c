"""What a client may send to `POST /v1/completions`, and what it is told otherwise; chat shares most."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import PublicError
from worker.api.chat_wire import ChatAsked, to_request
from worker.api.completions_wire import CompletionAsked, to_requests
from worker.api.validation import decode
from worker.request import Asked, Request

USER = {"role": "user", "content": "Hi"}


def completions(**fields: Any) -> list[Request]:
    return to_requests(decode(json.dumps({"prompt": "Hi", **fields}).encode(), CompletionAsked))


def chat(**fields: Any) -> Request:
    return to_request(decode(json.dumps({"messages": [USER], **fields}).encode(), ChatAsked))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"xtc_probability": 1.5}, "xtc_probability"),
    ({"xtc_probability": "often"}, "xtc_probability"),
    ({"xtc_threshold": 0.6}, "xtc_threshold"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"repetition_context_size": 0}, "repetition_context_size"),
    ({"repetition_context_size": 1.5}, "repetition_context_size"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"presence_context_size": 0}, "presence_context_size"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"frequency_context_size": -1}, "frequency_context_size"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"1": -101}}, "logit_bias.1"),
    ({"logit_bias": {"1": "x"}}, "logit_bias[...]"),
    ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"stop_token_ids": [1.5]}, "stop_token_ids[0]"),
    ({"stop_token_ids": 7}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 2000}, "stop_token_ids"),
    ({"stop": [str(n) for n in range(17)]}, "stop"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": "two"}, "n"),
    ({"seed": 2**64}, "seed"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_field_of_both_is_named(fields: dict[str, Any], param: str) -> None:
    for parse in (chat, completions):
        with pytest.raises(PublicError) as raised:
            parse(**fields)
        assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [{}]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"suffix": "}"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_field_of_text_completions_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PublicError) as raised:
        completions(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
    ],
)
def test_a_wrong_field_of_chat_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(PublicError) as raised:
        chat(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    ),
    st.sampled_from(sorted(CompletionAsked.__struct_fields__)),
)
def test_no_value_of_any_field_does_worse_than_a_400(value: Any, field: str) -> None:
    try:
        completions(**{field: value})
    except PublicError as error:
        assert error.status == 400


def test_every_shape_of_prompt() -> None:
    assert [request.prompt for request in completions(prompt="a")] == ["a"]
    assert [request.prompt for request in completions(prompt=["a", "b"])] == ["a", "b"]
    assert [request.prompt for request in completions(prompt=[1, 2])] == [(1, 2)]
    assert [request.prompt for request in completions(prompt=[[1], [2, 3]])] == [(1,), (2, 3)]


def test_values_are_taken_over() -> None:
    fields: dict[str, Any] = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "repetition_penalty": 1.1,
        "repetition_context_size": 30,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.3,
        "logit_bias": {"7": 5, "3": -100},
        "min_tokens": 4,
        "ignore_eos": True,
        "stop_token_ids": [9, 9, 8],
        "stop": ["x"],
        "n": 3,
    }
    text = completions(**fields, logprobs=2, best_of=3, max_tokens=5)[0]
    turn = chat(**fields, logprobs=True, top_logprobs=2, max_completion_tokens=5)
    for request in (text, turn):
        assert request.sampling == Asked(
            xtc_probability=0.5,
            xtc_threshold=0.2,
            repetition_penalty=1.1,
            repetition_context_size=30,
            presence_penalty=0.3,
            frequency_penalty=-0.3,
            logit_bias=((3, -100.0), (7, 5.0)),
        )
        assert (request.min_tokens, request.ignore_eos, request.stop_tokens) == (4, True, (9, 8))
        assert (request.stops, request.n, request.logprobs, request.max_tokens) == (("x",), 3, 2, 5)


def test_log_probabilities_without_alternatives_are_not_none() -> None:
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=False).logprobs is None
    assert completions(logprobs=0)[0].logprobs == 0
    assert completions()[0].logprobs is None

"""Log probabilities beside the text they belong to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.launch import Options
from tests.fixtures.tiny import IM_END, tiny_model
from tests.unit.worker.test_assembler import Words
from worker.model.loading import load
from worker.text.assembler import Assembler
from worker.text.events import Finished, TextDelta
from worker.text.logprobs import Likelihood, Scored, TokenLikelihood, TokenTexts


@pytest.fixture(scope="module")
def texts() -> TokenTexts:
    model = load(tiny_model(), Options(), lambda _: None)
    return TokenTexts(model.tokenizer, model.detokenizers)


class Named:
    """Stands for TokenTexts: a token is named by its number."""

    def likelihood(self, scored: Scored, token: int, offset: int) -> TokenLikelihood:
        return TokenLikelihood(str(token).encode(), scored.logprob, offset)


def deltas(pieces: list[str], stops: list[str]) -> list[tuple[str, list[int]]]:
    """Text and tokens of each delta, from tokens with these texts; "" is half a character."""
    named: Any = Named()
    assembler = Assembler(Words(*pieces), stops, prompt_tokens=1, texts=named)
    found = []
    for token in range(len(pieces)):
        events = assembler.push(token, "length" if token == len(pieces) - 1 else None, Scored(-1.0, ()))
        for event in events:
            if isinstance(event, TextDelta):
                found.append((event.text, [int(entry.token) for entry in event.logprobs]))
        if events and isinstance(events[-1], Finished):
            break
    return found


def test_each_token_comes_with_its_text() -> None:
    assert deltas(["a", "bc", "d"], []) == [("a", [0]), ("bc", [1]), ("d", [2])]


def test_tokens_of_one_character_come_with_it() -> None:
    assert deltas(["a", "", "", "é", "b"], []) == [("a", [0]), ("é", [1, 2, 3]), ("b", [4])]


def test_text_held_back_holds_its_tokens_back() -> None:
    assert deltas(["a", "st", "o", "ry"], ["stop"]) == [("a", [0]), ("story", [1, 2, 3])]


def test_text_that_is_never_shown_has_no_tokens() -> None:
    assert deltas(["a", "x st", "op", "ry"], ["stop"]) == [("a", [0]), ("x ", [1])]
    assert deltas(["stop"], ["stop"]) == []


@given(
    st.lists(st.text("abé", max_size=3), min_size=1, max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
)
def test_tokens_and_text_tell_the_same(pieces: list[str], stops: list[str]) -> None:
    found = deltas(pieces, stops)
    tokens = [token for _, part in found for token in part]
    assert tokens == list(range(len(tokens))), "in order, none twice"
    shown = "".join(text for text, _ in found)
    whole = "".join(pieces)
    assert whole.startswith(shown)
    begun = [index for index in range(len(pieces)) if len("".join(pieces[:index])) < len(shown)]
    assert tokens == begun


def test_tokens_have_their_bytes_and_special_ones_their_names(texts: TokenTexts) -> None:
    assert texts.of(ord("A")) == b"A"
    assert texts.of(0xF0) == b"\xf0"
    assert texts.of(IM_END) == b"<|im_end|>"
    assert Likelihood(b"\xf0", 0.0).text is None
    assert Likelihood("é".encode(), 0.0).text == "é"


def test_early_stop_sequences_are_part_of_the_answer() -> None:
    assembler = Assembler(Words("stop", "a", "stop"), ["stop"], prompt_tokens=1, min_tokens=3)
    events = [event for token in range(3) for event in assembler.push(token, None)]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["stop", "a"]
    last = events[-1]
    assert isinstance(last, Finished) and last.stop == "stop"


def test_a_stop_token_of_the_requests_is_reported() -> None:
    assembler = Assembler(Words("a", "b"), [], prompt_tokens=1, stop_tokens=(1,))
    assembler.push(0, None)
    (end,) = assembler.push(1, "stop")
    assert isinstance(end, Finished) and (end.reason, end.stop) == ("stop", 1)

"""Tool calls of every family, whatever the tokens and chunks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.text.replies import THINK, beginnings, dialect, pieces_of, read, seen, splitter, tokenised
from tests.unit.text.samples import FAMILIES, SAMPLES, Sample
from worker.text.pieces import CallArguments, CallBegan, CallEnded
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.hermes import Hermes

samples = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.family.__name__}")
tokens = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])


@samples
@tokens
def test_a_reply_of_the_family_is_understood(sample: Sample, tokens: bool) -> None:
    view = read(dialect(sample.family, tokens=tokens), sample.text)
    assert view.calls == [(name, arguments) for name, arguments in sample.calls]
    assert view.content == sample.content
    assert view.reasoning == sample.reasoning
    assert not view.flagged and not view.cut and not view.voided
    if sample.ids:
        assert view.ids == sample.ids
    assert len(set(view.ids)) == len(view.ids)


@settings(max_examples=150)
@given(sample=st.sampled_from(SAMPLES), tokens=st.booleans(), data=st.data())
def test_how_the_text_is_cut_changes_nothing(sample: Sample, tokens: bool, data: st.DataObject) -> None:
    language = dialect(sample.family, tokens=tokens)
    cuts = data.draw(st.sets(st.integers(0, len(sample.text))))
    limit = data.draw(st.booleans())
    text = data.draw(st.sampled_from([*beginnings(language, sample.text), sample.text]))
    assert read(language, text, cuts=cuts, cut=limit) == read(language, text, cut=limit)


def fragments(family: type[Family]) -> st.SearchStrategy[str]:
    """Text that is nearly markup: pieces of the family's replies in any order."""
    texts = [sample.text for sample in SAMPLES if sample.family is family] or [SAMPLES[0].text]
    markers = [*family.markers, THINK.start, THINK.end]
    scraps = st.sampled_from(texts).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, 12)).map(
            lambda place: text[place[0] : place[0] + place[1]]
        )
    )
    return st.lists(st.one_of(st.sampled_from(markers), scraps, st.text(max_size=3)), max_size=12).map(
        "".join
    )


@settings(max_examples=150)
@given(family=st.sampled_from(FAMILIES), tokens=st.booleans(), data=st.data())
def test_nonsense_is_cut_alike_leaks_no_marker_and_makes_no_broken_call(
    family: type[Family], tokens: bool, data: st.DataObject
) -> None:
    language = dialect(family, tokens=tokens)
    text = data.draw(fragments(family))
    cut = data.draw(st.booleans())
    cuts = data.draw(st.sets(st.integers(0, len(text))))
    thinking = data.draw(st.booleans()) and not family.always
    whole = pieces_of(splitter(language, thinking=thinking), tokenised(language, text), cut=cut)
    parts = pieces_of(splitter(language, thinking=thinking), tokenised(language, text, cuts), cut=cut)
    assert parts == whole
    view = seen(whole)
    letters = "".join(shown for _, shown in tokenised(language, text))
    for marker in language.sentinels.vocabulary:
        # Letters around a token that means nothing may spell a marker once it is gone.
        if marker not in letters:
            assert marker not in view.content
            assert marker not in view.reasoning


@samples
@tokens
def test_a_call_cut_by_the_token_limit_is_neither_complete_nor_shown_as_text(
    sample: Sample, tokens: bool
) -> None:
    """Fault 40: the reply says `length`; what came before the cut call counts."""
    language = dialect(sample.family, tokens=tokens)
    for text in beginnings(language, sample.text):
        view = read(language, text, cut=True)
        assert view.calls == sample.calls[: len(view.calls)]
        assert not view.flagged and not view.voided


def test_the_name_comes_at_once_and_the_arguments_as_they_are_written() -> None:
    reply = splitter(dialect(Hermes, tokens=False))
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}'
    came = [(text[: index + 1], piece) for index in range(len(text)) for piece in reply.push(0, text[index])]
    name = next(before for before, piece in came if isinstance(piece, CallBegan))
    assert name.endswith('"get_weather"')
    deltas = [(before, piece.delta) for before, piece in came if isinstance(piece, CallArguments)]
    assert all(before.endswith(delta) for before, delta in deltas)
    assert "".join(delta for _, delta in deltas) == '{"city": "Paris"}'
    assert isinstance(came[-1][1], CallEnded)

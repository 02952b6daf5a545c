"""Stop sequences, compared with the plainest possible reading of what they mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.text.stops import Stops

# Few letters, so that sequences repeat, overlap and nearly match.
words = st.text(alphabet="ab🙂", min_size=1, max_size=4)
stop_lists = st.lists(words, max_size=4)


def feed(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """Every piece shown, and the stop sequence that ended it."""
    machine, shown = Stops(stops), []
    for piece in pieces:
        text, matched = machine.push(piece)
        shown.append(text)
        if matched is not None:
            return shown, matched
    shown.append(machine.flush())
    return shown, None


def read_plainly(stops: list[str], text: str) -> tuple[str, str | None]:
    """Grow the text a character at a time until it ends with a stop sequence; the longest counts."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stop_lists, st.lists(st.text(alphabet="ab🙂", max_size=5), max_size=8))
def test_cuts_at_the_first_sequence_completed_however_the_text_comes(
    stops: list[str], pieces: list[str]
) -> None:
    shown, matched = feed(stops, pieces)
    assert ("".join(shown), matched) == read_plainly(stops, "".join(pieces))


@given(stop_lists, st.lists(st.text(alphabet="ab🙂", max_size=5), max_size=8))
def test_nothing_shown_is_taken_back(stops: list[str], pieces: list[str]) -> None:
    """What a streaming client saw at any moment is the beginning of the whole answer."""
    shown, _ = feed(stops, pieces)
    whole = read_plainly(stops, "".join(pieces))[0]
    for count in range(len(shown) + 1):
        assert whole.startswith("".join(shown[:count]))


@given(st.lists(words, min_size=1, max_size=4), st.text(alphabet="ab🙂", max_size=20))
def test_holds_back_no_more_than_it_must(stops: list[str], text: str) -> None:
    machine = Stops(stops)
    shown, matched = machine.push(text)
    if matched is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_sequence_split_across_tokens_is_never_seen() -> None:
    """Fault 39: `\\n\\nHuman:` came as five tokens, and clients saw its first four."""
    shown, matched = feed(["\n\nHuman:"], ["Yes.", "\n", "\n", "Hu", "man", ": and more"])
    assert (shown, matched) == (["Yes.", "", "", "", "", ""], "\n\nHuman:")


def test_a_false_start_is_shown_as_soon_as_it_is_one() -> None:
    shown, matched = feed(["END"], ["E", "N", "X"])
    assert (shown, matched) == (["", "", "ENX", ""], None)


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_sequences_text_passes_through(stops: list[str]) -> None:
    assert feed(stops, ["a", "b"]) == (["a", "b", ""], None)

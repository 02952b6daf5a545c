"""Tokens to text: always the text that decoding everything at once gives, and never half a character."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiny import byte_characters
from worker.text.detokenize import Detokenizer, Detokenizers, byte_of_character

SPECIAL = 256


class ByteLevel:
    """A tokenizer with a token per byte, a few longer ones and one special token."""

    all_special_ids: ClassVar[list[int]] = [SPECIAL]
    added_tokens_decoder: ClassVar[dict[int, Any]] = {
        SPECIAL: SimpleNamespace(content="<|end|>", special=True),
        257: SimpleNamespace(content="<think>", special=False),
    }
    backend_tokenizer = SimpleNamespace(
        decoder=SimpleNamespace(__getstate__=lambda: b'{"type": "ByteLevel", "use_regex": true}')
    )

    def __init__(self) -> None:
        characters = byte_characters()
        self.tokens: dict[int, str] = dict(enumerate(characters))
        halves = "🙂".encode()
        self.tokens[258] = characters[halves[0]] + characters[halves[1]]
        self.tokens[259] = characters[halves[2]] + characters[halves[3]] + characters[ord("!")]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.tokens.get(token) for token in ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        table = byte_of_character()
        out = b""
        for token in token_ids:
            if token in self.added_tokens_decoder:
                entry = self.added_tokens_decoder[token]
                out += b"" if entry.special and skip_special_tokens else entry.content.encode()
            else:
                out += bytes(table[character] for character in self.tokens[token])
        return out.decode("utf-8", "replace")


class SentencePiece(ByteLevel):
    """Words with a mark for the space before them, and bytes for what has no word."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}
    all_special_ids: ClassVar[list[int]] = []
    backend_tokenizer = SimpleNamespace(
        decoder=SimpleNamespace(
            __getstate__=lambda: (
                '{"type": "Sequence", "decoders": ['
                '{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, '
                '{"type": "ByteFallback"}, {"type": "Fuse"}, '
                '{"type": "Strip", "content": " ", "start": 1, "stop": 0}]}'
            ).encode()
        )
    )

    def __init__(self) -> None:
        self.tokens = {byte: f"<0x{byte:02X}>" for byte in range(256)}
        self.tokens.update({300: "▁Hello", 301: "▁world", 302: "né", 303: "▁"})


class Unknown(ByteLevel):
    """The same tokenizer with a decoder that we know nothing of."""

    backend_tokenizer = SimpleNamespace(decoder=None)


DETOKENIZERS = {kind: Detokenizers(kind()) for kind in (ByteLevel, SentencePiece, Unknown)}


def run(detokenizer: Detokenizer, tokens: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("kind", [ByteLevel, Unknown])
@given(text=st.text(max_size=30))
def test_any_text_comes_back_and_no_piece_has_half_a_character(kind: type[ByteLevel], text: str) -> None:
    pieces = run(DETOKENIZERS[kind].new(), list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


@given(text=st.text(max_size=20), cut=st.integers(0, 80))
@pytest.mark.parametrize("kind", [ByteLevel, Unknown])
def test_a_character_cut_by_the_end_is_not_shown(kind: type[ByteLevel], text: str, cut: int) -> None:
    """The token limit falls into the middle of an emoji: clients saw U+FFFD at the end."""
    data = text.encode()[:cut]
    pieces = run(DETOKENIZERS[kind].new(), list(data))
    assert "".join(pieces) == data.decode("utf-8", "ignore")


@given(st.binary(max_size=24))
def test_bytes_that_are_no_text_read_as_python_reads_them(data: bytes) -> None:
    pieces = run(DETOKENIZERS[ByteLevel].new(), list(data))
    whole = data.decode("utf-8", "replace")
    # A character that is cut by the end is not shown; Python shows one that can be none, as ED A0, twice.
    assert whole.removeprefix("".join(pieces)) in ("", "\ufffd", "\ufffd\ufffd")


def test_an_emoji_over_two_tokens_comes_whole() -> None:
    assert run(DETOKENIZERS[ByteLevel].new(), [258, 259]) == ["", "🙂!", ""]


@pytest.mark.parametrize("kind", [ByteLevel, Unknown])
def test_special_tokens_have_no_text_and_added_ones_do(kind: type[ByteLevel]) -> None:
    assert "".join(run(DETOKENIZERS[kind].new(), [104, SPECIAL, 257, 105])) == "h<think>i"


def test_a_token_beyond_the_vocabulary_has_no_text() -> None:
    """Logits are padded to a round number; a model that says a padding token must not end the request."""
    assert run(DETOKENIZERS[ByteLevel].new(), [104, 99_999, 105]) == ["h", "", "i", ""]


def test_sentencepiece_words_bytes_and_the_first_space() -> None:
    tokens = [300, 301, 303, *"é".encode(), 302]
    assert run(DETOKENIZERS[SentencePiece].new(), tokens) == ["Hello", " world", " ", "", "é", "né", ""]


def test_replies_do_not_share_state() -> None:
    one, other = DETOKENIZERS[ByteLevel].new(), DETOKENIZERS[ByteLevel].new()
    assert one.push(258) == ""
    assert other.push(104) == "h"
    assert one.push(259) == "🙂!"

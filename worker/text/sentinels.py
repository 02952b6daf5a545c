"""A model's control markers, told apart from text that merely looks like them.

Where a marker is one token of the vocabulary, only that token is the marker: the same letters in ordinary
tokens are text. So a sentinel token travels through our parsers as one lone surrogate code point, which
UTF-8 cannot encode and so no decoded text contains. A marker that is no token is matched by its letters.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import orjson

_FIRST: Final = 0xDC00
_COUNT: Final = 0x400


class Sentinels:
    """The markers of one model. `vocabulary` maps a token's text to its id."""

    def __init__(self, vocabulary: Mapping[str, int], markers: Iterable[str]) -> None:
        # Longest first: `<|tool_calls_section_begin|>` must not be taken for a shorter one inside it.
        found = sorted({marker for marker in markers if marker in vocabulary}, key=lambda m: (-len(m), m))
        self._stand_in = {marker: chr(_FIRST + number) for number, marker in enumerate(found[:_COUNT])}
        self._spelling = {ord(stand_in): marker for marker, stand_in in self._stand_in.items()}
        self._nothing = dict.fromkeys(self._spelling)
        self._token = {stand_in: vocabulary[marker] for marker, stand_in in self._stand_in.items()}
        self._of_token = {vocabulary[marker]: marker for marker in found[:_COUNT]}
        self.vocabulary = {marker: vocabulary[marker] for marker in found[:_COUNT]}
        """The markers that are tokens, with their ids."""

    def take(self, token: int, text: str) -> str:
        """The text of a token as parsers read it; `text` is what the detokenizer says."""
        marker = self._of_token.get(token)
        if marker is None:
            return text
        # Some detokenizers spell sentinels out, others leave them away.
        return text.removesuffix(marker) + self._stand_in[marker]

    def encode(self, markup: str) -> str:
        """Written markup as parsers read it: with its sentinel tokens, where there are any."""
        for marker, stand_in in self._stand_in.items():
            markup = markup.replace(marker, stand_in)
        return markup

    def decode(self, text: str) -> str:
        """What parsers read, as the model wrote it."""
        return text if text.isascii() else text.translate(self._spelling)

    def drop(self, text: str) -> str:
        """The text without sentinel tokens: where they mean nothing, they are no text either."""
        return text if text.isascii() else text.translate(self._nothing)

    def is_token(self, marker: str) -> bool:
        return marker in self._stand_in

    def token(self, marker: str) -> int | None:
        """Id of the token that is `marker`."""
        return self.vocabulary.get(marker)

    def split(self, markup: str) -> tuple[str, str]:
        """Markup in two: the letters before its first sentinel token, and the rest."""
        encoded = self.encode(markup)
        letters = next((i for i, character in enumerate(encoded) if character in self._token), len(encoded))
        return encoded[:letters], self.decode(encoded[letters:])

    def lark(self, markup: str) -> str:
        """Markup as a sequence of symbols of a grammar: literals, and sentinel tokens by their ids."""
        symbols: list[str] = []
        literal = ""
        for character in self.encode(markup):
            token = self._token.get(character)
            if token is None:
                literal += character
                continue
            if literal:
                symbols.append(quote(literal))
                literal = ""
            symbols.append(f"<[{token}]>")
        if literal:
            symbols.append(quote(literal))
        return " ".join(symbols)


def quote(text: str) -> str:
    """A string literal of a grammar. Source: llguidance reads them as JSON strings."""
    return orjson.dumps(text).decode()

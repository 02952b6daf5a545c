"""Tokens to text, one at a time, without ever showing half a character.

A token is some bytes, not some characters: an emoji may be spread over four tokens. Where the tokenizer's
decoder is one that we know, each token has its bytes looked up once and an incremental UTF-8 decoder holds
incomplete characters back. Any other tokenizer is asked to decode a short window instead.
"""

import codecs
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import orjson

REPLACEMENT: Final = "\ufffd"


class Tokenizer(Protocol):
    """What we need of a tokenizer; transformers' fast and slow ones have it."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


class Detokenizer(Protocol):
    """The text of one growing sequence of tokens."""

    def push(self, token: int) -> str:
        """The text that `token` completed; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is still held back at the end, but never half a character."""
        ...


def byte_of_character() -> dict[str, int]:
    """Byte for each character of a byte-level vocabulary.

    Source: GPT-2's byte encoder. Printable Latin-1 stands for itself, other bytes are moved to U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    moved = (byte for byte in range(256) if byte not in printable)
    table.update((chr(0x100 + number), byte) for number, byte in enumerate(moved))
    return table


class _ByteTable:
    """Bytes of each token, looked up at its first use."""

    def __init__(self, tokenizer: Tokenizer, special: Collection[int], added: dict[int, str]) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {token: text.encode() for token, text in added.items()}
        self._bytes.update((token, b"") for token in special)

    def of(self, token: int) -> bytes:
        known = self._bytes.get(token)
        if known is None:
            # Logits may be wider than the vocabulary: a padded model can say tokens that don't exist.
            text = self._tokenizer.convert_ids_to_tokens([token])[0] or ""
            known = self._bytes[token] = self._convert(text)
        return known

    def _convert(self, text: str) -> bytes:
        raise NotImplementedError


class _ByteLevel(_ByteTable):
    _table: Final = byte_of_character()

    def _convert(self, text: str) -> bytes:
        try:
            return bytes([self._table[character] for character in text])
        except KeyError:
            return text.encode()


class _SentencePiece(_ByteTable):
    def _convert(self, text: str) -> bytes:
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("\u2581", " ").encode()


class _FromBytes:
    """Detokenizer over a byte table."""

    __slots__ = ("_decode", "_strip", "_table")

    def __init__(self, table: _ByteTable, *, strip: bool) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip

    def push(self, token: int) -> str:
        text = self._decode.decode(self._table.of(token))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        # Only an incomplete character can be left, and half of one is nothing to show.
        self._decode.reset()
        return ""


class _FromWindow:
    """Detokenizer for any tokenizer: the text of a token is what it adds to the text of those before it."""

    __slots__ = ("_given", "_start", "_tokenizer", "_tokens")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # tokens before it need no further context
        self._given = 0  # tokens whose text was given out

    def _text(self, until: int) -> str:
        return self._tokenizer.decode(self._tokens[self._start : until], skip_special_tokens=True)

    def push(self, token: int) -> str:
        self._tokens.append(token)
        before, now = self._text(self._given), self._text(len(self._tokens))
        if now.endswith(REPLACEMENT) or len(now) <= len(before):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return now[len(before) :]

    def flush(self) -> str:
        before, now = self._text(self._given), self._text(len(self._tokens))
        self._given = len(self._tokens)
        return now[len(before) :].rstrip(REPLACEMENT)


class Detokenizers:
    """Makes detokenizers for one tokenizer. Special tokens have no text."""

    def __init__(self, tokenizer: Any) -> None:
        added = {token: str(entry.content) for token, entry in _added(tokenizer).items()}
        special = {*getattr(tokenizer, "all_special_ids", ())}
        special.update(token for token, entry in _added(tokenizer).items() if entry.special)
        self._tokenizer: Tokenizer = tokenizer
        self._table: _ByteTable | None = None
        self._strip = False
        match _decoder(tokenizer):
            case {"type": "ByteLevel"}:
                self._table = _ByteLevel(tokenizer, special, added)
            case {"type": "Sequence", "decoders": [*steps]} if _is_sentencepiece(steps):
                self._table = _SentencePiece(tokenizer, special, added)
                self._strip = any(step.get("type") == "Strip" for step in steps)

    def bytes_of(self, token: int) -> bytes:
        """A token by itself, as far as that can be told; nothing for a special one."""
        if self._table is None:
            return self._tokenizer.decode([token], skip_special_tokens=True).encode()
        return self._table.of(token)

    def new(self) -> Detokenizer:
        if self._table is None:
            return _FromWindow(self._tokenizer)
        return _FromBytes(self._table, strip=self._strip)


def _added(tokenizer: Any) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _decoder(tokenizer: Any) -> Any:
    """The decoder's description as in tokenizer.json; None for a tokenizer without one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    return None if decoder is None else orjson.loads(decoder.__getstate__())


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    kinds = [step.get("type") for step in steps]
    replaces = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "} in steps
    return replaces and kinds in (
        ["Replace", "ByteFallback", "Fuse"],
        ["Replace", "ByteFallback", "Fuse", "Strip"],
    )

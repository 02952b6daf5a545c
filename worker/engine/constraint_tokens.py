"""A model's vocabulary as grammars see it."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from shared.errors import PublicError

Bits = NDArray[np.int32]
"""A bit for each token, 32 to a word, the lowest first: 1 is allowed."""

_SPACE: Final = b" \t\r\n"


class Vocabulary:
    """Made once for a model, in about a second for a large vocabulary.

    `width` is that of the model's logits, which may be more than there are tokens, or fewer. Raises
    PublicError 501 for a tokenizer that isn't one of the `tokenizers` library.
    """

    def __init__(self, tokenizer: Any, *, width: int, end_tokens: Collection[int]) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise PublicError(
                501,
                "unsupported",
                "This model's tokenizer can't be used with structured output or forced calls.",
            )
        self.width = width
        self.size: int = max(width, backend.get_vocab_size(with_added_tokens=True))
        self.end_tokens = tuple(sorted(end_tokens))
        self.ll = LLTokenizer(backend.to_str(), n_vocab=self.size, eos_token=list(self.end_tokens))
        self.controls = frozenset(
            str(token.content)
            for number, token in backend.get_added_tokens_decoder().items()
            if number < self.size and self.ll.is_special_token(number)
        )
        """The text of each control token; only its token stands for it, and no grammar's letters do."""
        self.spaces = self._spaces()
        """Tokens that are nothing but white space."""
        self.space_bits = self.bits(self.spaces)
        self.end_bits = self.bits(self.end_tokens)

    @property
    def words(self) -> int:
        """Words of a mask."""
        return (self.size + 31) // 32

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; of a control token those of its name."""
        return bytes(self.ll.decode_bytes([token]))

    def bits(self, tokens: Collection[int]) -> Bits:
        """The mask that allows just `tokens`."""
        words = np.zeros(self.words, np.uint32)
        for token in tokens:
            words[token // 32] |= np.uint32(1 << (token % 32))
        return words.view(np.int32)

    def _spaces(self) -> frozenset[int]:
        return frozenset(
            token
            for token in range(self.ll.vocab_size)
            if (text := self.ll.decode_bytes([token])) and not text.strip(_SPACE)
        )

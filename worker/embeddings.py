"""Embeddings: texts or tokens to vectors, for a model that was made for it."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from shared.errors import PublicError, invalid
from worker.completion import Completions
from worker.engine.embedder import Embedder
from worker.engine.jobs import Jobs
from worker.model.embedding import Embedding

Text = str | Sequence[int]
"""A text, or its tokens."""

# Source: the model cards of the families that were trained with instructions.
_INSTRUCTED: Final = "Instruct: {instruction}\nQuery:"


class Embedded(msgspec.Struct, frozen=True):
    """Vectors as little-endian float32, in the order of the texts."""

    vectors: list[bytes]
    prompt_tokens: int


class Embeddings:
    """For one loaded model. On the event loop but for the preparation."""

    def __init__(
        self, completions: Completions, jobs: Jobs, embedding: Embedding, embedder: Embedder
    ) -> None:
        self._completions = completions
        self._jobs = jobs
        self._embedding = embedding
        self._embedder = embedder
        self.size = embedding.size
        """Numbers in a vector."""

    @property
    def model_id(self) -> str:
        return self._completions.model_id

    async def embed(
        self,
        texts: Sequence[Text],
        *,
        param: str,
        kind: str | None = None,
        instruction: str | None = None,
        truncate: int | None = None,
        dimensions: int | None = None,
    ) -> Embedded:
        """`kind` chooses one of the model's own prompts, `instruction` says what the texts are looked up for.

        Texts longer than `truncate` tokens are cut there; None refuses those longer than the context window.
        `dimensions` keeps so many numbers of each vector. `param` is the texts' field. Raises PublicError.
        """
        async with self._jobs.open("embeddings") as job:
            prompt = self._prompt(kind, instruction)
            tokens = await self._completions.prompts.run(
                lambda: [
                    self._tokens(text, prompt, param if isinstance(texts, str) else f"{param}[{i}]", truncate)
                    for i, text in enumerate(texts)
                ]
            )
            count = sum(map(len, tokens))
            length = self._embedder.held(tokens)
            vectors = await job.run(self._embedder.embed(tokens), prompt_tokens=count, length=length)
        if dimensions is not None and dimensions < self.size:
            normalised = self._embedding.normalised
            vectors = [_shortened(vector, dimensions, normalised=normalised) for vector in vectors]
        return Embedded(vectors, count)

    def _prompt(self, kind: str | None, instruction: str | None) -> str:
        prompts = self._embedding.prompts
        own = prompts.get(kind, "") if kind is not None else ""
        if instruction is None:
            return own
        text = _INSTRUCTED.format(instruction=instruction)
        # Whether there is a space between the colon and the text is a matter of the model.
        return text + " " if prompts.get("query", "").endswith("Query: ") else text

    def _tokens(self, text: Text, prompt: str, param: str, truncate: int | None) -> list[int]:
        model = self._completions.model
        window = model.context_window
        limit = window if truncate is None else min(truncate, window)
        if isinstance(text, str):
            tokens: list[int] = model.tokenizer.encode(prompt + text)
        else:
            tokens = list(text)
            for token in tokens:
                if not 0 <= token < model.vocabulary:
                    raise invalid(
                        f"`{param}` has the token id {token}; this model's are 0 to {model.vocabulary - 1}.",
                        param=param,
                    )
        if not tokens:
            raise invalid(f"`{param}` must not be empty.", param=param)
        if len(tokens) <= limit:
            return tokens
        if truncate is None:
            raise PublicError(
                400,
                "context_length_exceeded",
                f"`{param}` has {len(tokens)} tokens, and this model takes {window} at once. Shorten it, or "
                "set `truncate` to true.",
                param=param,
            )
        # What the tokenizer puts at the end is what the vector is read off.
        ending = tokens[-1:] if isinstance(text, str) and self._ends(tokens[-1]) else []
        return tokens[: limit - len(ending)] + ending

    def _ends(self, token: int) -> bool:
        tokenizer = self._completions.model.tokenizer
        return token in tokenizer.all_special_ids


def _shortened(vector: bytes, dimensions: int, *, normalised: bool) -> bytes:
    """The first numbers, `normalised` again: models trained for it keep what matters most in front."""
    numbers = np.frombuffer(vector, "<f4")[:dimensions]
    if not normalised:
        return numbers.tobytes()
    return (numbers / max(float(np.linalg.norm(numbers)), 1e-12)).astype("<f4").tobytes()

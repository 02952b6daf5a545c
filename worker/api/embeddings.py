"""`POST /v1/embeddings`.

Source: OpenAI's API reference, "Create embeddings". Beyond it: `input_type` and `instruction` for models that
tell queries from documents, `truncate` and vLLM's `truncate_prompt_tokens`.
"""

import base64
from typing import Any, Final, Literal

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from shared.errors import PublicError, invalid
from worker.api.exchange import Exchange
from worker.api.validation import check_range, decode, given
from worker.embeddings import Embeddings

MAX_INPUTS: Final = 2048


class EmbeddingsAsked(msgspec.Struct, frozen=True):
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | UnsetType = UNSET
    user: str | UnsetType = UNSET
    """Accepted: it changes nothing."""
    input_type: str | None = None
    instruction: str | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: int | None = None


class EmbeddingsRoute:
    """The route, for one loaded model. `embeddings` is None when it is not made for that."""

    def __init__(self, embeddings: Embeddings | None, *, model_id: str) -> None:
        self._embeddings = embeddings
        self._model_id = model_id

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), EmbeddingsAsked)
        embeddings = self._embeddings
        if embeddings is None:
            raise PublicError(
                501,
                "unsupported",
                f"{self._model_id!r} is not an embedding model: nothing in its folder says so, and "
                "vectors of other models mean nothing. Choose one such as Qwen3-Embedding.",
            )
        texts = _texts(asked.input)
        dimensions = given(asked.dimensions)
        check_range(dimensions, "dimensions", 1, embeddings.size)
        check_range(asked.truncate_prompt_tokens, "truncate_prompt_tokens", -1, float("inf"))
        if asked.truncate_prompt_tokens == 0:
            raise invalid("`truncate_prompt_tokens` must not be 0.", param="truncate_prompt_tokens")
        for field in ("instruction", "input_type"):
            if getattr(asked, field) is not None and any(not isinstance(text, str) for text in texts):
                raise invalid(f"`{field}` can't be put before tokens; send texts.", param=field)
        with exchange.while_connected():
            embedded = await embeddings.embed(
                texts,
                param="input",
                kind=asked.input_type,
                instruction=asked.instruction,
                truncate=_limit(asked),
                dimensions=dimensions,
            )
        encode = _encode_base64 if asked.encoding_format == "base64" else _encode_float
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(embedded.vectors)
        ]
        body = {
            "object": "list",
            "data": data,
            "model": embeddings.model_id,
            "usage": {"prompt_tokens": embedded.prompt_tokens, "total_tokens": embedded.prompt_tokens},
        }
        await exchange.answer(200, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


_WHOLE_WINDOW: Final = 2**62


def _limit(asked: EmbeddingsAsked) -> int | None:
    """Tokens at which texts are cut; None refuses what is too long."""
    if asked.truncate_prompt_tokens is not None and asked.truncate_prompt_tokens != -1:
        return asked.truncate_prompt_tokens
    cuts = asked.truncate if asked.truncate is not None else asked.truncate_prompt_tokens == -1
    return _WHOLE_WINDOW if cuts else None


def _texts(wire: str | list[Any]) -> list[str | list[int]]:
    """A text, tokens, or a list of one of both."""
    if isinstance(wire, str):
        texts: list[str | list[int]] = [wire]
    elif wire and all(_is_token(entry) for entry in wire):
        texts = [wire]
    else:
        texts = wire
    if not 0 < len(texts) <= MAX_INPUTS:
        raise invalid(f"`input` must have 1 to {MAX_INPUTS} entries, not {len(texts)}.", param="input")
    single = texts is not wire
    for index, text in enumerate(texts):
        param = "input" if single else f"input[{index}]"
        if not _is_text(text):
            raise invalid(
                f"`{param}` must be a text or a list of token ids.", param=param, code="invalid_type"
            )
        if not text:
            raise invalid(f"`{param}` must not be empty.", param=param)
    return texts


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_token, value)))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _encode_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _encode_float(vector: bytes) -> Any:
    return np.frombuffer(vector, "<f4")
